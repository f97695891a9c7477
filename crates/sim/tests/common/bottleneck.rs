//! The queue of one bottleneck that several flows share.

use netsum_sim::tcp::TcpConfig;
use netsum_sim::{Simulation, Switching};

use super::*;

pub struct Bottleneck {
    /// Of packets that wait, without the one in the transmitter and one more.
    pub mean: f64,
    pub deviation: f64,
    pub least: u32,
    pub most: u32,
    pub utilisation: f64,
    /// Jain's index of the delivered bytes.
    pub fairness: f64,
}

/// N senders – switch = switch – N receivers, 10 Gbit/s and 10 µs everywhere; endless flows that start 100 µs
/// apart; statistics from 20 to 60 ms.
pub fn bottleneck(n: u32, switching: Switching, tcp: TcpConfig) -> Bottleneck {
    let mut simulation = Simulation::new(&dumbbell(n), switching, tcp, 1).unwrap();
    simulation.set_flows((0..n).map(move |i| flow(u64::from(i) * 100 * US, i, n + i, 1 << 40)));
    let link = link(simulation.network(), "left", "right");
    simulation.run(20 * MS);
    let carried = simulation.network().carried_bytes(link);
    let before: Vec<u32> = (0..n).map(|f| simulation.transport().received(f)).collect();
    let mut waiting = Vec::new();
    for step in 1..=8000 {
        simulation.run(20 * MS + step * 5 * US);
        waiting.push(simulation.network().waiting(link).saturating_sub(1));
    }
    let got: Vec<f64> = (0..n)
        .map(|f| f64::from(simulation.transport().received(f) - before[f as usize]))
        .collect();
    let sum: f64 = got.iter().sum();
    let squares: f64 = got.iter().map(|g| g * g).sum();
    let mean = waiting.iter().map(|&w| f64::from(w)).sum::<f64>() / waiting.len() as f64;
    let variance = waiting.iter().map(|&w| (f64::from(w) - mean).powi(2)).sum::<f64>();
    let bits = (simulation.network().carried_bytes(link) - carried) as f64 * 8.0;
    assert_eq!(simulation.network().counters(link).drops, 0);
    Bottleneck {
        mean,
        deviation: (variance / waiting.len() as f64).sqrt(),
        least: *waiting.iter().min().unwrap(),
        most: *waiting.iter().max().unwrap(),
        utilisation: bits / 10e9 / 40e-3,
        fairness: sum * sum / (f64::from(n) * squares),
    }
}
