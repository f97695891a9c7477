//! A controller's grants to a job at a switch and at a server.

use netsum_wire::atp::{Header, Level, MAX_FAN_IN};
use netsum_wire::{Epoch, JobId, TreeId};

use crate::PortId;
use crate::lease::{Granted, LeaseKey, Superseded};
use crate::values::row_cost;

/// Grant to one job, for one of its servers, at one switch. `P` names a neighbour: a port number for machines, an
/// address for drivers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease<P = PortId> {
    /// Job.
    pub job: JobId,
    /// Version of the plan; a lease of a later epoch replaces this one.
    pub epoch: Epoch,
    /// Number of the server in the job.
    pub tree: TreeId,
    /// Children that contribute here.
    pub members: Members<P>,
    /// Next hop towards the server.
    pub parent: P,
    /// Maximum number of fragments in flight.
    pub window: u16,
    /// Largest payload.
    pub fragment_bytes: u16,
    /// Claim on the switch's slots.
    pub claim: Claim,
}

/// Children of a switch, by bit in the bitmap of its level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Members<P = PortId> {
    /// Workers of one rack (level 1).
    Rack {
        /// Workers by bit of `workers`.
        workers: Vec<P>,
        /// This rack's bit in `racks`.
        rack: u8,
        /// Number of racks of the job.
        racks: u8,
    },
    /// Racks of the job (level 2). A worker at the server's own switch is a rack of one.
    Server {
        /// Racks by bit of `racks`.
        racks: Vec<Rack<P>>,
    },
}

/// A child of a level-2 switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rack<P = PortId> {
    /// Its switch, or its only worker.
    pub port: P,
    /// Number of its workers.
    pub workers: u8,
}

/// A job's claim on the slots of a switch; the switch's policy determines its effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Slots guaranteed to the job.
    pub guaranteed: u32,
    /// Maximum number of slots.
    pub limit: u32,
    /// Priority beyond the guarantees; higher values win.
    pub priority: u8,
}

impl Default for Claim {
    fn default() -> Self {
        Claim { guaranteed: 0, limit: u32::MAX, priority: 0 }
    }
}

/// Grant to one job at one of its servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerLease<P = PortId> {
    /// Job.
    pub job: JobId,
    /// Version of the plan.
    pub epoch: Epoch,
    /// This server's number in the job.
    pub tree: TreeId,
    /// Ranks of each rack's workers, by bit; float sums are made in the order of ranks.
    pub racks: Vec<Vec<u32>>,
    /// Neighbours, and the contributions that each may send.
    pub neighbours: Vec<Neighbour<P>>,
    /// Maximum number of fragments in flight.
    pub window: u16,
    /// Largest payload.
    pub fragment_bytes: u16,
    /// Number of slots of a switch with which the workers compute.
    pub slots: u32,
}

/// A switch or worker next to a server. Results go to all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour<P = PortId> {
    /// The neighbour.
    pub port: P,
    /// Racks whose contributions it sends.
    pub racks: u32,
    /// Workers of these racks whose contributions it sends.
    pub workers: u32,
}

/// Why a lease cannot be installed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeaseError {
    /// Invalid number of members.
    #[error("a level has 1 to {MAX_FAN_IN} members, the lease has {0}")]
    Members(usize),
    /// Invalid number of the own rack.
    #[error("rack {rack} is not one of {racks}")]
    Rack {
        /// The rack's number.
        rack: u8,
        /// Number of racks.
        racks: u8,
    },
    /// Two neighbours are the same.
    #[error("neighbour {0:?} occurs twice in the lease")]
    DuplicateNeighbour(PortId),
    /// A repeated rank, or a missing one.
    #[error("the racks do not hold each rank from 0 once")]
    Ranks,
    /// A worker without a neighbour that sends its contributions.
    #[error("no neighbour speaks for rack {0}")]
    Unreachable(u32),
    /// Window out of range.
    #[error("a window of {0} is not between 1 and 16384")]
    Window(u16),
    /// Invalid size of a fragment.
    #[error("fragments of {fragment} bytes are not between 4 and {row}, in steps of 4")]
    FragmentBytes {
        /// Fragment size of the lease.
        fragment: u16,
        /// Size of the switch's slots.
        row: u16,
    },
    /// Not enough slots for the guarantee.
    #[error("{wanted} slots are not free: {free} of {slots} can be promised")]
    Slots {
        /// Slots that the lease guarantees.
        wanted: u32,
        /// Slots without a guarantee to others.
        free: u32,
        /// All slots.
        slots: u32,
    },
    /// Not enough rows at the server.
    #[error("the server's memory is full: the lease needs {needed} rows, {free} are free")]
    NoMemory {
        /// Rows for two windows, and for the floats of all ranks.
        needed: u64,
        /// Rows that no lease has reserved.
        free: u64,
    },
    /// The lease's epoch is not later than the installed one.
    #[error("epoch {offered} is not after the installed epoch {installed}")]
    Epoch {
        /// Epoch of the lease.
        offered: Epoch,
        /// Installed epoch.
        installed: Epoch,
    },
}

impl<P: Copy> Lease<P> {
    /// The same lease with other names for neighbours.
    pub fn map<Q>(&self, mut name: impl FnMut(P) -> Q) -> Lease<Q> {
        let members = match &self.members {
            Members::Rack { workers, rack, racks } => {
                let workers = workers.iter().map(|&p| name(p)).collect();
                Members::Rack { workers, rack: *rack, racks: *racks }
            }
            Members::Server { racks } => {
                let racks = racks.iter().map(|r| Rack { port: name(r.port), workers: r.workers });
                Members::Server { racks: racks.collect() }
            }
        };
        Lease {
            job: self.job,
            epoch: self.epoch,
            tree: self.tree,
            members,
            parent: name(self.parent),
            window: self.window,
            fragment_bytes: self.fragment_bytes,
            claim: self.claim,
        }
    }
}

impl Lease {
    /// Validates everything that does not depend on the switch's state. `row_bytes`: size of a slot.
    pub fn validate(&self, row_bytes: u16) -> Result<(), LeaseError> {
        let mut ports: Vec<PortId> = self.members.neighbours().collect();
        if ports.is_empty() || ports.len() > usize::from(MAX_FAN_IN) {
            return Err(LeaseError::Members(ports.len()));
        }
        match &self.members {
            &Members::Rack { rack, racks, .. } if rack >= racks || racks > MAX_FAN_IN => {
                return Err(LeaseError::Rack { rack, racks });
            }
            Members::Server { racks } => {
                let wrong = |r: &&Rack| r.workers == 0 || r.workers > MAX_FAN_IN;
                if let Some(rack) = racks.iter().find(wrong) {
                    return Err(LeaseError::Members(rack.workers.into()));
                }
            }
            Members::Rack { .. } => {}
        }
        ports.push(self.parent);
        check_distinct(ports)?;
        check_sizes(self.window, self.fragment_bytes, row_bytes)
    }

    /// Bit of the child at `port`.
    pub(crate) fn child(&self, port: PortId) -> Option<usize> {
        self.members.neighbours().position(|p| p == port)
    }

    /// The bitmap of all children.
    pub(crate) fn everyone(&self) -> u32 {
        Header::all(self.members.neighbours().count() as u8)
    }

    /// Whether the bitmaps of a packet of child `child` agree with the lease.
    pub(crate) fn agrees(&self, child: usize, header: &Header) -> bool {
        let bit = 1 << child;
        match &self.members {
            Members::Rack { workers, rack, racks } => {
                header.level == Level::Rack
                    && header.workers == bit
                    && header.racks == 1 << rack
                    && usize::from(header.rack_fan_in) == workers.len()
                    && header.server_fan_in == *racks
            }
            Members::Server { racks } => {
                header.level == Level::Server
                    && header.racks == bit
                    && header.rack_fan_in == racks[child].workers
                    && usize::from(header.server_fan_in) == racks.len()
            }
        }
    }
}

impl<P: Copy> Members<P> {
    /// Children by bit.
    pub fn neighbours(&self) -> impl Iterator<Item = P> + '_ {
        let (workers, racks) = match self {
            Members::Rack { workers, .. } => (workers.as_slice(), [].as_slice()),
            Members::Server { racks } => ([].as_slice(), racks.as_slice()),
        };
        workers.iter().copied().chain(racks.iter().map(|r| r.port))
    }
}

impl<P> Members<P> {
    /// Children, by bit, that a packet from the server is for; bits beyond the children have no meaning.
    pub fn addressed(&self, header: &Header) -> u32 {
        let all = |bits: u32| if bits == 0 { u32::MAX } else { bits };
        match self {
            Members::Rack { .. } if header.racks.count_ones() > 1 => u32::MAX,
            Members::Rack { rack, .. } => match all(header.racks) >> rack & 1 {
                1 => all(header.workers),
                _ => 0,
            },
            Members::Server { .. } => all(header.racks),
        }
    }
}

impl<P: Copy> ServerLease<P> {
    /// The same lease with other names for neighbours.
    pub fn map<Q>(&self, mut name: impl FnMut(P) -> Q) -> ServerLease<Q> {
        let neighbours = self.neighbours.iter();
        let neighbours = neighbours.map(|n| Neighbour {
            port: name(n.port),
            racks: n.racks,
            workers: n.workers,
        });
        ServerLease {
            job: self.job,
            epoch: self.epoch,
            tree: self.tree,
            racks: self.racks.clone(),
            neighbours: neighbours.collect(),
            window: self.window,
            fragment_bytes: self.fragment_bytes,
            slots: self.slots,
        }
    }
}

impl<P> ServerLease<P> {
    /// Number of entries for fragments, by sequence number modulo this: two windows and more, so that an entry belongs
    /// to one number.
    pub(super) fn places(&self) -> usize {
        usize::from(self.window).next_power_of_two() * 2
    }

    /// Rows that the server may need at once: one for each entry, and for each fragment in flight one per rank for
    /// floats; their sum replaces the fragment's own row.
    pub fn rows(&self) -> u64 {
        self.places() as u64 + u64::from(self.window) * self.ranks() as u64
    }

    /// Memory that the lease takes of a server. `row_bytes`: the server's largest payload.
    pub fn memory_bytes(&self, row_bytes: u16) -> u64 {
        self.rows() * row_cost(row_bytes)
    }

    /// Number of workers of the job.
    pub fn ranks(&self) -> usize {
        self.racks.iter().map(Vec::len).sum()
    }
}

impl ServerLease {
    /// Validates everything that does not depend on the server's state.
    pub fn validate(&self, row_bytes: u16) -> Result<(), LeaseError> {
        let most = usize::from(MAX_FAN_IN);
        let sizes = self.racks.iter().map(Vec::len).chain([self.racks.len()]);
        if let Some(wrong) = sizes.into_iter().find(|&n| n == 0 || n > most) {
            return Err(LeaseError::Members(wrong));
        }
        let mut ranks: Vec<u32> = self.racks.iter().flatten().copied().collect();
        ranks.sort_unstable();
        if ranks.iter().zip(0..).any(|(&rank, expected)| rank != expected) {
            return Err(LeaseError::Ranks);
        }
        check_distinct(self.neighbours.iter().map(|n| n.port).collect())?;
        for (rack, workers) in self.racks.iter().enumerate() {
            let here = self.neighbours.iter().filter(|n| n.racks >> rack & 1 == 1);
            let reached = here.fold(0, |bits, n| bits | n.workers);
            if Header::all(workers.len() as u8) & !reached != 0 {
                return Err(LeaseError::Unreachable(rack as u32));
            }
        }
        check_sizes(self.window, self.fragment_bytes, row_bytes)
    }
}

fn check_distinct(mut ports: Vec<PortId>) -> Result<(), LeaseError> {
    ports.sort();
    let twice = ports.windows(2).find(|w| w[0] == w[1]);
    twice.map_or(Ok(()), |w| Err(LeaseError::DuplicateNeighbour(w[0])))
}

fn check_sizes(window: u16, fragment_bytes: u16, row: u16) -> Result<(), LeaseError> {
    if window == 0 || window > 16384 {
        return Err(LeaseError::Window(window));
    }
    if !(4..=row).contains(&fragment_bytes) || !fragment_bytes.is_multiple_of(4) {
        return Err(LeaseError::FragmentBytes { fragment: fragment_bytes, row });
    }
    Ok(())
}

impl Granted for Lease {
    fn key(&self) -> LeaseKey {
        LeaseKey { job: self.job, epoch: self.epoch, tree: self.tree }
    }
}

impl Granted for ServerLease {
    fn key(&self) -> LeaseKey {
        LeaseKey { job: self.job, epoch: self.epoch, tree: self.tree }
    }
}

impl From<Superseded> for LeaseError {
    fn from(Superseded { offered, installed }: Superseded) -> LeaseError {
        LeaseError::Epoch { offered, installed }
    }
}
