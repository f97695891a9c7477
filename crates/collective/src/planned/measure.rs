//! Measurement of peer links before use: latency and rate.
//!
//! All peer links of a rank are measured at once, as they are used at once.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use netsum_net::stream::{Connection, read_exact, write_all};

/// A measured peer link; values of the slower direction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// One-way latency from thread to thread.
    pub latency_s: f64,
    /// Bits per second.
    pub rate_bps: f64,
}

/// Measures all peer links. `first`: whether this end sends first, which must differ at the other end.
pub(super) fn measure(peer_links: &[(Arc<dyn Connection>, bool)]) -> Vec<io::Result<Measured>> {
    thread::scope(|scope| {
        let one = |(peer_link, first): &(Arc<dyn Connection>, bool)| {
            let (peer_link, first) = (peer_link.clone(), *first);
            scope.spawn(move || if first { speak(&*peer_link) } else { answer(&*peer_link) })
        };
        let threads: Vec<_> = peer_links.iter().map(one).collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        joined.map(|one| one.unwrap_or_else(|_| Err(io::Error::other("it panicked")))).collect()
    })
}

fn speak(peer_link: &dyn Connection) -> io::Result<Measured> {
    let latency_s = ping(peer_link)?;
    let there = send(peer_link)?;
    receive(peer_link)?;
    exchange_results(peer_link, latency_s, there)
}

fn answer(peer_link: &dyn Connection) -> io::Result<Measured> {
    pong(peer_link)?;
    receive(peer_link)?;
    let back = send(peer_link)?;
    // The other end sends the latency.
    let mut words = [0; 16];
    read_exact(peer_link, &mut words)?;
    write_all(peer_link, &back.to_le_bytes())?;
    let word = |at: usize| words[at..at + 8].try_into().map_or(0.0, f64::from_le_bytes);
    Ok(Measured { latency_s: word(0), rate_bps: word(8).min(back) })
}

/// Exchanges the results, so that both ends know both directions.
fn exchange_results(
    peer_link: &dyn Connection,
    latency_s: f64,
    there: f64,
) -> io::Result<Measured> {
    write_all(peer_link, &[latency_s.to_le_bytes(), there.to_le_bytes()].concat())?;
    let mut back = [0; 8];
    read_exact(peer_link, &mut back)?;
    Ok(Measured { latency_s, rate_bps: there.min(f64::from_le_bytes(back)) })
}

/// Median of half the round-trip times of a few bytes.
fn ping(peer_link: &dyn Connection) -> io::Result<f64> {
    let mut times = Vec::new();
    for _ in 0..PINGS {
        let begun = Instant::now();
        write_all(peer_link, &[1; WORD])?;
        read_exact(peer_link, &mut [0; WORD])?;
        times.push(begun.elapsed().as_secs_f64() / 2.0);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[PINGS / 2])
}

fn pong(peer_link: &dyn Connection) -> io::Result<()> {
    for _ in 0..PINGS {
        read_exact(peer_link, &mut [0; WORD])?;
        write_all(peer_link, &[1; WORD])?;
    }
    Ok(())
}

/// Sends growing amounts until the time can be measured; returns bits per second.
fn send(peer_link: &dyn Connection) -> io::Result<f64> {
    let bytes = vec![0; BYTES_LEAST];
    let mut count = 1u32;
    loop {
        let begun = Instant::now();
        write_all(peer_link, &count.to_le_bytes())?;
        for _ in 0..count {
            write_all(peer_link, &bytes)?;
        }
        // The receiver answers when it has everything.
        read_exact(peer_link, &mut [0; WORD])?;
        let seconds = begun.elapsed().as_secs_f64();
        if seconds >= LONG_ENOUGH_S || count >= COUNT_MOST {
            write_all(peer_link, &0u32.to_le_bytes())?;
            return Ok(f64::from(count) * BYTES_LEAST as f64 * 8.0 / seconds);
        }
        count = (count * 4).min(COUNT_MOST);
    }
}

fn receive(peer_link: &dyn Connection) -> io::Result<()> {
    let mut bytes = vec![0; BYTES_LEAST];
    loop {
        let mut count = [0; 4];
        read_exact(peer_link, &mut count)?;
        let count = u32::from_le_bytes(count);
        if count == 0 {
            return Ok(());
        }
        if count > COUNT_MOST {
            return Err(io::ErrorKind::InvalidData.into());
        }
        for _ in 0..count {
            read_exact(peer_link, &mut bytes)?;
        }
        write_all(peer_link, &[1; WORD])?;
    }
}

const WORD: usize = 8;
const PINGS: usize = 32;
const BYTES_LEAST: usize = 16 << 10;
/// 1 GiB: a second at 10 GB/s is less.
const COUNT_MOST: u32 = 1 << 16;
/// Long compared with start-up and the latency of the answer.
const LONG_ENOUGH_S: f64 = 0.05;
