//! One rank of netsum: addresses are exchanged through pipes of the parent.

use std::io::BufRead;
use std::time::{Duration, Instant};

use netsum_collective::{Buffer, Group, GroupConfig, Options, Terms, Work};

const PATIENCE: Duration = Duration::from_secs(120);
const SECONDS: f64 = 0.05;
const WINDOW: usize = 64;
/// Bytes of their places together.
const TOGETHER: usize = 8 << 20;
const TAG: u64 = 3;

/// Connects, measures, and prints a line per size if this is rank 0.
pub fn rank(rank: u32, sizes: &[usize], options: Options) {
    let group = Group::new(GroupConfig {
        rank,
        size: 2,
        name: "bench".into(),
        controller: None,
        host: None,
        timeout: PATIENCE,
        options,
        plan: None,
    });
    let group = group.expect("a group");
    println!("{}", serde_json::json!(group.address()));
    let lines = std::io::stdin().lock().lines().map(|line| line.expect("the parent lives"));
    let addresses: Vec<Vec<u8>> =
        lines.take(2).map(|line| serde_json::from_str(&line).expect("an address")).collect();
    group.connect(&addresses).expect("both ranks are here");
    for &bytes in sizes {
        let mut ends = Ends {
            group: &group,
            rank,
            source: Buffer::from_vec(vec![1; bytes]),
            targets: (0..places(bytes)).map(|_| empty(bytes)).collect(),
        };
        let times = [
            // A round trip is two messages.
            ends.block(Ends::there_and_back) / 2.0,
            ends.block(Ends::exchange),
            ends.block(Ends::one_way),
        ];
        assert!(
            rank == 0 || ends.targets[0].slice(bytes - 1..bytes) == [1],
            "{bytes} bytes are wrong"
        );
        if rank == 0 {
            println!("{bytes} {:.9} {:.9} {:.9}", times[0], times[1], times[2]);
        }
    }
    group.barrier(PATIENCE).wait(None).expect("both ranks are here");
    group.close();
}

struct Ends<'a> {
    group: &'a Group,
    rank: u32,
    source: Buffer,
    /// For messages that are under way together; the first is for the others, too.
    targets: Vec<Buffer>,
}

impl Ends<'_> {
    fn send(&self) -> Work {
        self.group.send(&self.source, 1 - self.rank, TAG, Terms::here(PATIENCE))
    }

    fn receive(&mut self) -> Work {
        self.group.receive(&mut self.targets[0], Some(1 - self.rank), TAG, Terms::here(PATIENCE))
    }

    fn there_and_back(&mut self, count: usize) {
        for _ in 0..count {
            if self.rank == 0 {
                done(&self.send());
            }
            done(&self.receive());
            if self.rank == 1 {
                done(&self.send());
            }
        }
    }

    fn exchange(&mut self, count: usize) {
        for _ in 0..count {
            let sent = self.send();
            done(&self.receive());
            done(&sent);
        }
    }

    fn one_way(&mut self, count: usize) {
        let mut answer = empty(1);
        let mut left = count;
        while left > 0 {
            let now = left.min(WINDOW);
            left -= now;
            let (to, tag) = (1 - self.rank, TAG);
            let places = self.targets.len();
            let mut works: Vec<Work> = Vec::with_capacity(now);
            for number in 0..now {
                if let Some(before) = number.checked_sub(places).filter(|_| self.rank == 1) {
                    done(&works[before]);
                }
                works.push(match self.rank {
                    0 => self.group.send(&self.source, to, tag, PATIENCE),
                    _ => {
                        let target = &mut self.targets[number % places];
                        self.group.receive(target, Some(to), tag, PATIENCE)
                    }
                });
            }
            works.iter().for_each(done);
            done(&match self.rank {
                0 => self.group.receive(&mut answer, Some(to), tag, Terms::here(PATIENCE)),
                _ => self.group.send(&answer, to, tag, Terms::here(PATIENCE)),
            });
        }
    }

    /// Seconds per message by rank 0, because both must run the same number.
    fn block(&mut self, shape: impl Fn(&mut Self, usize)) -> f64 {
        let once = self.timed(&shape, 10);
        self.timed(&shape, ((SECONDS / once) as usize).clamp(10, 200_000))
    }

    fn timed(&mut self, shape: impl Fn(&mut Self, usize), count: usize) -> f64 {
        done(&self.group.barrier(Terms::here(PATIENCE)));
        let start = Instant::now();
        shape(self, count);
        let mut seconds =
            Buffer::from_vec((start.elapsed().as_secs_f64() / count as f64).to_le_bytes().to_vec());
        done(&self.group.broadcast(seconds.lend_all(), 0, Terms::here(PATIENCE)));
        f64::from_le_bytes(seconds.slice(0..8).try_into().expect("eight bytes"))
    }
}

/// How many messages of a size have places of their own: as many as can be under way, of long ones fewer.
fn places(bytes: usize) -> usize {
    (TOGETHER / bytes).clamp(2, WINDOW)
}

fn empty(bytes: usize) -> Buffer {
    Buffer::from_vec(vec![0; bytes])
}

fn done(work: &Work) {
    work.wait(None).expect("a message");
}
