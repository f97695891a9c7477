//! Jobs whose trees carry nothing yield their leases to jobs that find no room.

use netsum_control::decide::{Event, Settings};
use netsum_control::pb;
use netsum_topo::{Addressing, Fabric, Tenant, leaf_spine};

use crate::world::{RATE, World};

const YIELD_MS: u64 = 10_000;
/// Memory of a switch that some dozen jobs fill.
const MEMORY: u64 = 4 << 20;

fn fabric() -> Fabric {
    let mut fabric = leaf_spine(2, 2, 2, RATE, RATE, Addressing::default()).unwrap();
    fabric.tenants = ["squatter", "other"].map(Tenant::named).to_vec();
    fabric
}

/// A fabric whose memory belongs to idle jobs of one tenant.
fn full() -> (World, Vec<u32>) {
    let mut world =
        World::new(fabric(), Settings { idle_yield_ms: YIELD_MS, ..Settings::default() });
    world.memory = MEMORY;
    world.all_up();
    let mut squatters = Vec::new();
    while squatters.last().is_none_or(|&last| world.plan(last).window_max > 1) {
        squatters.push(world.job_of("panama", "squatter"));
    }
    (world, squatters)
}

impl World {
    /// A switch counts packets of these jobs.
    fn carry(&mut self, jobs: &[u32]) {
        for contributions in [1, 2] {
            let counted = |&job: &u32| pb::SwitchTree { job, contributions, ..Default::default() };
            let trees = jobs.iter().map(counted).collect();
            let session = self.switches["rack0"].0;
            let counters = pb::SwitchHeartbeat { trees, ..Default::default() };
            self.play(Event::SwitchHeartbeat { session, counters }).unwrap();
        }
    }

    /// `ms` pass during which these jobs use their trees.
    fn wait_while_active(&mut self, ms: u64, jobs: &[u32]) {
        for _ in 0..ms / 1_000 {
            self.wait(1_000);
            self.carry(jobs);
        }
    }

    /// All ranks of a job end an allreduce of a megabyte over the host path.
    fn sum_over_hosts(&mut self, job: u32) {
        for rank in 0..4 {
            let heartbeat = &mut self.reports.entry((job, rank)).or_default().heartbeat;
            heartbeat.operations += 1;
            heartbeat.host_bytes_tx += 1 << 20;
        }
        self.wait(1_100);
    }

    fn trees(&self, job: u32) -> usize {
        self.plan(job).trees.len()
    }
}

#[test]
fn idle_jobs_make_room_for_another_tenants_job() {
    let (mut world, squatters) = full();
    world.wait(YIELD_MS);
    let epochs: Vec<u32> = squatters.iter().map(|&job| world.plan(job).epoch).collect();
    let other = world.job_of("panama", "other");
    assert_eq!((world.trees(other), world.plan(other).reason.as_str()), (2, ""));
    assert!(world.plan(other).window_max >= 32, "{}", world.plan(other).window_max);
    world.check_leases();
    let first = world.plan(squatters[0]);
    assert!(first.trees.is_empty() && first.reason.contains("made room for job"), "{first:?}");
    let kept = |&(&job, epoch): &(&u32, u32)| world.plan(job).epoch == epoch;
    let kept = squatters.iter().zip(epochs).filter(kept).count();
    assert!(kept + 2 >= squatters.len(), "{kept} of {} keep their leases", squatters.len());
}

#[test]
fn a_job_that_has_yielded_gets_trees_again_when_it_sends() {
    let (mut world, squatters) = full();
    world.wait(YIELD_MS);
    let other = world.job_of("panama", "other");
    let first = squatters[0];
    world.wait_while_active(YIELD_MS, &[other]);
    assert_eq!(world.trees(first), 0, "it has not sent anything");
    world.sum_over_hosts(first);
    assert_eq!((world.trees(first), world.trees(other)), (2, 2));
    assert_eq!(world.plan(first).reason, "");
    world.check_leases();
}

#[test]
fn an_idle_job_displaces_nobody() {
    let (mut world, squatters) = full();
    world.wait(YIELD_MS);
    let other = world.job_of("panama", "other");
    world.wait_while_active(3 * YIELD_MS, &[other]);
    let trees: usize = squatters.iter().map(|&job| world.trees(job)).sum();
    world.wait_while_active(3 * YIELD_MS, &[other]);
    assert_eq!(squatters.iter().map(|&job| world.trees(job)).sum::<usize>(), trees);
    assert_eq!(world.trees(other), 2);
}

#[test]
fn jobs_at_work_keep_their_leases_until_they_are_idle() {
    let (mut world, squatters) = full();
    let with_trees: Vec<u32> =
        squatters.iter().copied().filter(|&job| world.trees(job) > 0).collect();
    world.wait_while_active(YIELD_MS, &with_trees);
    let epochs: Vec<u32> = squatters.iter().map(|&job| world.plan(job).epoch).collect();
    let other = world.job_of("panama", "other");
    let after: Vec<u32> = squatters.iter().map(|&job| world.plan(job).epoch).collect();
    assert_eq!(after, epochs);
    assert!(world.plan(other).window_max <= 1);
    // The squatters fall silent; the other job works over hosts, or with a window of one.
    for _ in 0..2 * YIELD_MS / 1_000 {
        world.sum_over_hosts(other);
    }
    assert_eq!(world.trees(other), 2);
    assert!(world.plan(other).window_max >= 32, "{}", world.plan(other).window_max);
    world.check_leases();
}
