//! Devices of one pool, shared fairly among jobs.

use netsum_topo::{OcsSpec, Ratio};
use serde::Serialize;

use super::closed::closed;
use super::error::JobsError;
use super::shared::shared;

/// A job: N and D, and E of the pool; its `devices` are ignored.
pub type JobDemand = OcsSpec;

/// A job's share of the pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Grant {
    /// Number of devices, all of which it needs for its algbw.
    pub devices: u32,
    /// algbw with them.
    pub algbw: Ratio,
    /// algbw over that without any device.
    pub gain: Ratio,
}

/// Shares `pool` devices with `device_ports` ports each by max-min fairness of the gain over having no device:
/// maximises the least gain, then the next.
///
/// Repeatedly the job with the least gain gets the devices for its next gain; of jobs with equal gains, the one that
/// needs fewest devices. A job whose next step exceeds the pool keeps what it has. `better`: by
/// [`shared`](super::shared) instead of [`closed`](super::closed).
pub fn share_devices(
    jobs: &[JobDemand],
    pool: u32,
    device_ports: u32,
    better: bool,
) -> Result<Vec<Grant>, JobsError> {
    if jobs.is_empty() {
        return Err(JobsError::NoJob);
    }
    if let Some((job, spec)) =
        (jobs.iter().enumerate()).find(|(_, spec)| spec.device_ports != device_ports)
    {
        return Err(JobsError::OtherDevices { job, given: spec.device_ports, pool: device_ports });
    }
    let mut ladders: Vec<Ladder> = jobs.iter().map(|job| Ladder::of(job, pool, better)).collect();
    let mut left = pool;
    while let Some(at) = (0..ladders.len())
        .filter(|&at| ladders[at].next(left).is_some())
        .min_by_key(|&at| (ladders[at].gain(), ladders[at].next(left)))
    {
        left -= ladders[at].next(left).expect("just found");
        ladders[at].step += 1;
    }
    Ok(ladders.iter().map(Ladder::grant).collect())
}

/// The numbers of devices at which a job's algbw rises, and the current one.
struct Ladder {
    steps: Vec<(u32, Ratio)>,
    step: usize,
}

impl Ladder {
    fn of(job: &OcsSpec, pool: u32, better: bool) -> Ladder {
        let algbw = |devices: u32| {
            let spec = job.with_devices(devices);
            if better { shared(&spec).algbw() } else { closed(&spec).algbw(&spec) }
        };
        let mut steps = vec![(0, algbw(0))];
        let most = Ratio::from(i64::from(job.worker_ports));
        for devices in 1..=pool {
            let (_, last) = steps[steps.len() - 1];
            if last == most {
                break;
            }
            let rate = algbw(devices);
            if rate > last {
                steps.push((devices, rate));
            }
        }
        Ladder { steps, step: 0 }
    }

    fn gain(&self) -> Ratio {
        self.steps[self.step].1 / self.steps[0].1
    }

    /// Devices that the next step takes, if there is one and `left` suffices.
    fn next(&self, left: u32) -> Option<u32> {
        let (devices, _) = self.steps.get(self.step + 1)?;
        let more = devices - self.steps[self.step].0;
        (more <= left).then_some(more)
    }

    fn grant(&self) -> Grant {
        let (devices, algbw) = self.steps[self.step];
        Grant { devices, algbw, gain: self.gain() }
    }
}
