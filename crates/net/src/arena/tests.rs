//! The arena between threads, and its flag under a model checker.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::mark::Flag;
use super::{Arena, ArenaError, ArenaPort, Stamp, Waiting};
use crate::futex::model::ModelWord;

/// Arenas of one host, by rank.
fn arenas(ranks: usize) -> Vec<Arena> {
    let ports: Vec<ArenaPort> = (0..ranks).map(|_| ArenaPort::open().unwrap()).collect();
    let seats: Vec<_> = ports.iter().map(|port| port.seat().clone()).collect();
    thread::scope(|scope| {
        let meet = |(rank, port): (usize, ArenaPort)| {
            let seats = &seats;
            scope.spawn(move || {
                port.meet(rank, seats, seats, &[7; 16], Duration::from_secs(10)).unwrap()
            })
        };
        let meeting: Vec<_> = ports.into_iter().enumerate().map(meet).collect();
        meeting.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

const NEVER: &dyn Fn(usize) -> bool = &|_| false;

/// In every round each rank writes its number and the round's, and all ranks read all slots: a slot that is overwritten
/// or read too early shows.
#[test]
fn slots_are_read_before_they_are_written_again() {
    for ranks in [2, 3] {
        thread::scope(|scope| {
            for mut arena in arenas(ranks) {
                scope.spawn(move || {
                    let deadline = soon();
                    let waiting = Waiting { deadline, stopped: NEVER };
                    for round in 1..=1000u32 {
                        let rank = arena.rank() as u32;
                        let slot = arena.open(&waiting).unwrap();
                        let value = (rank * 1_000_000 + round).to_le_bytes();
                        slot[..4096].as_chunks_mut().0.fill(value);
                        arena.publish(Stamp {
                            call: u64::from(round),
                            word: u64::from(rank),
                            ..Stamp::default()
                        });
                        // Every other round is checked one round later.
                        if round % 2 == 0 {
                            arena.await_all(&waiting).unwrap();
                            let slots = arena.parts().1;
                            for from in 0..ranks {
                                assert_eq!(slots.word(from), from as u64);
                                for ago in 0..2 {
                                    let expected = from as u32 * 1_000_000 + round - ago;
                                    let found = slots.of(from, ago)[..4096].as_chunks::<4>().0;
                                    let right = |v: &[u8; 4]| *v == expected.to_le_bytes();
                                    assert!(found.iter().all(right), "{from} in {round} - {ago}");
                                }
                            }
                        }
                    }
                });
            }
        });
    }
}

/// A rank may be at most two rounds ahead: in the third it would write where the other may still read.
#[test]
fn a_slot_cannot_be_opened_while_another_rank_may_read_it() {
    let mut all = arenas(2);
    let (mut late, mut ahead) = (all.pop().unwrap(), all.pop().unwrap());
    let (patient, hasty) = (soon(), Instant::now());
    let waiting = |deadline| Waiting { deadline, stopped: NEVER };
    let publish = |arena: &mut Arena| {
        arena.open(&waiting(patient)).unwrap();
        arena.publish(Stamp::default());
    };
    publish(&mut ahead);
    for _ in 0..10 {
        publish(&mut ahead);
        assert!(!ahead.is_open());
        let closed = ahead.open(&waiting(hasty)).map(|_| ());
        assert_eq!(closed, Err(ArenaError::Timeout { missing: vec![1] }));
        publish(&mut late);
    }
}

/// Small values in the flag's line, and sums that are added in the sender's slot.
#[test]
fn heads_and_answers_reach_the_other_rank() {
    thread::scope(|scope| {
        for mut arena in arenas(2) {
            scope.spawn(move || {
                let waiting = Waiting { deadline: soon(), stopped: NEVER };
                let (rank, other) = (arena.rank(), 1 - arena.rank());
                let value = |rank: usize, round: u32| (round * 2 + rank as u32) as u8;
                for round in 1..=1000u32 {
                    arena.open(&waiting).unwrap();
                    arena.head().fill(value(rank, round));
                    arena.parts().0[..300].fill(value(rank, round));
                    arena.hand_over(Stamp { call: u64::from(round), word: 0, answered: true });
                    match round % 3 {
                        0 => drop(arena.all_appear()),
                        1 => arena.await_rank(other, &waiting).unwrap(),
                        _ => {}
                    }
                    arena.await_all(&waiting).unwrap();
                    assert!(arena.slots().head(other).iter().all(|&v| v == value(other, round)));
                    if round > 1 {
                        let sum = value(0, round - 1).wrapping_add(value(1, round - 1));
                        assert!(arena.slots().of(rank, 1)[..300].iter().all(|&v| v == sum));
                    }
                    let own = value(rank, round);
                    arena.answer(other, 300).iter_mut().for_each(|v| *v = v.wrapping_add(own));
                }
            });
        }
    });
}

/// Two ranks after a round, of which one's thread has ended.
fn published(answered: bool) -> Arena {
    thread::scope(|scope| {
        let ranks = arenas(2).into_iter().map(|mut arena| {
            scope.spawn(move || {
                let waiting = Waiting { deadline: soon(), stopped: NEVER };
                arena.open(&waiting).unwrap();
                arena.publish(Stamp { answered, ..Stamp::default() });
                arena.await_all(&waiting).unwrap();
                arena
            })
        });
        let ranks: Vec<_> = ranks.collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).next().unwrap()
    })
}

#[test]
#[should_panic(expected = "the round of rank 1 is not to be answered")]
fn a_round_is_answered_only_where_that_was_said() {
    published(false).answer(1, 64);
}

#[test]
#[should_panic(expected = "the answer to our own round is not awaited yet")]
fn an_own_slot_is_not_read_while_the_other_rank_answers() {
    published(true).slots().of(0, 0);
}

#[test]
fn ranks_that_are_late_or_in_another_call_are_named() {
    let mut all = arenas(3);
    let (mut third, mut second, mut first) =
        (all.pop().unwrap(), all.pop().unwrap(), all.pop().unwrap());
    let waiting = Waiting { deadline: Instant::now() + Duration::from_millis(50), stopped: NEVER };
    for arena in [&mut first, &mut third] {
        arena.open(&waiting).unwrap();
        arena.publish(Stamp { call: 1, word: 0, ..Stamp::default() });
    }
    assert_eq!(first.await_all(&waiting), Err(ArenaError::Timeout { missing: vec![1] }));
    let waiting = Waiting { deadline: soon(), stopped: &|_| true };
    assert_eq!(third.await_all(&waiting), Err(ArenaError::Stopped { missing: vec![1] }));
    second.open(&waiting).unwrap();
    second.publish(Stamp { call: 2, word: 0, ..Stamp::default() });
    let waiting = Waiting { deadline: soon(), stopped: NEVER };
    assert_eq!(first.await_all(&waiting), Err(ArenaError::Differs { rank: 1, call: 2 }));
}

#[test]
fn an_alarm_wakes_a_sleeper() {
    let mut all = arenas(2);
    let alarm = all[0].alarm();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let sleeper = scope.spawn(|| {
            let stopped = |_| stop.load(Ordering::Relaxed);
            let waiting = Waiting { deadline: soon(), stopped: &stopped };
            all[0].open(&waiting).unwrap();
            all[0].publish(Stamp::default());
            all[0].await_rank(1, &waiting)
        });
        thread::sleep(Duration::from_millis(50));
        stop.store(true, Ordering::Relaxed);
        alarm.ring();
        assert_eq!(sleeper.join().unwrap(), Err(ArenaError::Stopped { missing: vec![1] }));
    });
}

/// Three connections that are not ranks send a byte from time to time: each of their reads succeeds in time.
#[test]
fn connections_that_drip_bytes_do_not_delay_an_arena() {
    use std::io::Write;
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixStream};
    let ports = [ArenaPort::open().unwrap(), ArenaPort::open().unwrap()];
    let seats: Vec<_> = ports.iter().map(|port| port.seat().clone()).collect();
    let address = SocketAddr::from_abstract_name(&seats[0].name).unwrap();
    let dripping: Vec<_> = (0..3)
        .map(|_| {
            let mut socket = UnixStream::connect_addr(&address).unwrap();
            thread::spawn(move || {
                // The leader closes it after its time-out.
                while socket.write_all(b"n").is_ok() {
                    thread::sleep(Duration::from_millis(300));
                }
            })
        })
        .collect();
    let started = Instant::now();
    let arenas = thread::scope(|scope| {
        let meet = |(rank, port): (usize, ArenaPort)| {
            let seats = &seats;
            scope.spawn(move || port.meet(rank, seats, seats, &[7; 16], Duration::from_secs(30)))
        };
        let meeting = ports.into_iter().enumerate().map(meet).collect::<Vec<_>>();
        meeting.into_iter().filter_map(|rank| rank.join().unwrap()).collect::<Vec<_>>()
    });
    let took = started.elapsed();
    assert_eq!(arenas.len(), 2);
    assert!(took < Duration::from_secs(3), "{took:?}");
    dripping.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn wrong_secrets_and_absent_ranks_make_no_arena() {
    let ports = [ArenaPort::open().unwrap(), ArenaPort::open().unwrap()];
    let seats: Vec<_> = ports.iter().map(|port| port.seat().clone()).collect();
    let [first, second] = ports;
    let quick = Duration::from_millis(200);
    thread::scope(|scope| {
        let intruder = scope.spawn(|| second.meet(1, &seats, &seats, &[8; 16], quick).is_none());
        assert!(first.meet(0, &seats, &seats, &[7; 16], quick).is_none());
        assert!(intruder.join().unwrap(), "it does not know the secret");
    });
}

/// All interleavings of one thread that publishes twice and one that waits for both: no wake-up is lost (loom reports a
/// deadlock), and writes before a publication are visible after it.
#[test]
fn no_wake_up_is_lost_in_any_order_of_steps() {
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    loom::model(|| {
        let flag = Arc::new(Flag::new(ModelWord::new(), ModelWord::new()));
        let slots = Arc::new([UnsafeCell::new(0u32), UnsafeCell::new(0)]);
        let writer = loom::thread::spawn({
            let (flag, slots) = (flag.clone(), slots.clone());
            move || {
                for round in 1..=2 {
                    // SAFETY: loom checks that no other thread reads the cell meanwhile; the test shows that.
                    slots[round - 1].with_mut(|slot| unsafe { *slot = round as u32 });
                    flag.hand_over(round as u32);
                    flag.wake();
                }
            }
        });
        let mut seen = 0;
        for round in 1..=2u32 {
            while seen < round {
                seen = flag.round();
                if seen < round {
                    flag.sleep(seen, Duration::ZERO);
                }
            }
            // SAFETY: as above.
            slots[round as usize - 1].with(|slot| assert_eq!(unsafe { *slot }, round));
        }
        writer.join().unwrap();
    });
}

/// All interleavings of an answer: the publisher reads its own slot again when it sees the answering rank's next round.
#[test]
fn an_answer_is_there_when_its_round_is() {
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    loom::model(|| {
        let flag = || Arc::new(Flag::new(ModelWord::new(), ModelWord::new()));
        let (asks, answers, slot) = (flag(), flag(), Arc::new(UnsafeCell::new(0u32)));
        let wait = |flag: &Flag<ModelWord>| {
            while flag.round() != 1 {
                flag.sleep(0, Duration::ZERO);
            }
        };
        let answerer = loom::thread::spawn({
            let (asks, answers, slot) = (asks.clone(), answers.clone(), slot.clone());
            move || {
                wait(&asks);
                // SAFETY: loom checks that no other thread accesses the cell; the test shows that.
                slot.with_mut(|slot| unsafe { *slot += 1 });
                answers.hand_over(1);
                answers.wake();
            }
        });
        // SAFETY: as above.
        slot.with_mut(|slot| unsafe { *slot = 1 });
        asks.hand_over(1);
        asks.wake();
        wait(&answers);
        // SAFETY: as above.
        slot.with_mut(|slot| assert_eq!(unsafe { std::mem::take(&mut *slot) }, 2));
        answerer.join().unwrap();
    });
}

/// All interleavings of two ranks that hand over, poll once, then wake sleepers, and sleep if they saw nothing: like
/// [`Arena::hand_over`] and the following waits.
#[test]
fn waking_after_polling_loses_no_wake_up() {
    use loom::sync::Arc;
    loom::model(|| {
        let flags = Arc::new([(); 2].map(|()| Flag::new(ModelWord::new(), ModelWord::new())));
        let rank = |rank: usize, flags: Arc<[Flag<ModelWord>; 2]>| {
            let (own, other) = (&flags[rank], &flags[1 - rank]);
            own.hand_over(1);
            let appears = other.round() == 1;
            own.wake();
            while !appears && other.round() != 1 {
                other.sleep(0, Duration::ZERO);
            }
        };
        let second = loom::thread::spawn({
            let flags = flags.clone();
            move || rank(1, flags)
        });
        rank(0, flags);
        second.join().unwrap();
    });
}

#[test]
#[should_panic(expected = "nobody waited since the last round was handed over")]
fn a_rank_that_hands_over_must_wait_before_the_next_round() {
    let mut all = arenas(2);
    for _ in 0..2 {
        all[0].hand_over(Stamp::default());
    }
}
