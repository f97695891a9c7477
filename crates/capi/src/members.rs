//! What all ranks of a communicator agree on: windows, and other communicators with other ranks, or fewer, or more.

use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering;

use netsum_collective::{Buffer, Group, GroupConfig};
use netsum_nccl_core::{Failure, MeetingPlace, PLACE_BYTES, Settings};

use crate::comm::{self, Comm, Handle};
use crate::config::CommConfig;

impl Comm {
    /// A communicator of the ranks with the same `color`, ordered by `key` and rank, over the host path; `None` for a
    /// negative color. All ranks must call it.
    pub(crate) fn split(
        &self,
        (color, key): (c_int, c_int),
        config: CommConfig,
    ) -> Result<Option<Comm>, Failure> {
        let number = self.made.fetch_add(1, Ordering::Relaxed);
        let mine = [color.to_le_bytes(), key.to_le_bytes()].concat();
        let wishes = self.exchange(&mine)?;
        let mut members: Vec<(i32, u32)> = Vec::new();
        for (rank, wish) in (0..).zip(&wishes) {
            let (Some(&theirs), Some(&key)) = (wish.first_chunk::<4>(), wish.last_chunk::<4>())
            else {
                return Err(Failure::usage(format!("rank {rank} sent no color")));
            };
            if i32::from_le_bytes(theirs) == color {
                members.push((i32::from_le_bytes(key), rank));
            }
        }
        members.sort_unstable();
        if color < 0 {
            self.exchange(&[])?;
            return Ok(None);
        }
        let place = members.iter().position(|&(_, rank)| rank == self.rank);
        let rank = place.map_or(0, |at| at as u32);
        let size = members.len() as u32;
        let settings = config.apply(Settings::from_environment()?);
        let name = match settings.label {
            Some(label) => format!("{}/{number}/{color}-{label}", self.name),
            None => format!("{}/{number}/{color}", self.name),
        };
        let group = Group::new(GroupConfig {
            rank,
            size,
            name: name.clone(),
            controller: None,
            host: settings.host,
            timeout: self.timeout,
            options: settings.options,
            plan: None,
        })?;
        let addresses = self.exchange(&group.address())?;
        let theirs: Vec<Vec<u8>> =
            members.iter().map(|&(_, rank)| addresses[rank as usize].clone()).collect();
        group.connect(&theirs)?;
        let rest = (self.device, self.timeout, config);
        Comm::new(group, name, (rank, size), rest, self.reserved.place()).map(Some)
    }

    /// A communicator of all ranks but `left_out`, in their order. Exactly the others call it: they meet at the first
    /// of them, so that this works when the group has failed.
    pub(crate) fn shrink(&self, left_out: &[c_int], config: CommConfig) -> Result<Comm, Failure> {
        let number = self.made.fetch_add(1, Ordering::Relaxed);
        for (at, &rank) in left_out.iter().enumerate() {
            if !u32::try_from(rank).is_ok_and(|rank| rank < self.size) {
                let words = format!("excluded rank {rank} is not one of {} ranks", self.size);
                return Err(Failure::argument(words));
            }
            if left_out[..at].contains(&rank) {
                return Err(Failure::argument(format!("rank {rank} is excluded twice")));
            }
        }
        let members: Vec<u32> =
            (0..self.size).filter(|&rank| !left_out.contains(&(rank as c_int))).collect();
        let Some(rank) = members.iter().position(|&rank| rank == self.rank) else {
            let words = format!("rank {} is excluded, and must not call", self.rank);
            return Err(Failure::argument(words));
        };
        let mut settings = config.apply(Settings::from_environment()?);
        // Groups that meet at the same place one after the other have different names.
        let label = settings.label.map_or(String::new(), |label| format!("-{label}"));
        settings.label = Some(format!("{number}{label}"));
        let timeout = settings.timeout;
        let place = &self.places[members[0] as usize];
        let _meeting = if rank == 0 { Some(self.reserved.open(&settings)?) } else { None };
        let (rank, size) = (rank as u32, members.len() as u32);
        let (group, name) = place.join((rank, size), settings)?;
        Comm::new(group, name, (rank, size), (self.device, timeout, config), place)
    }

    /// A communicator of these ranks and new ones, which get the higher ranks. One rank has the place where all meet.
    pub(crate) fn grow(
        &self,
        place: Option<MeetingPlace>,
        size: c_int,
        config: CommConfig,
    ) -> Result<Comm, Failure> {
        let own = place.as_ref().map(MeetingPlace::to_bytes);
        let told = self.exchange(own.as_ref().map_or(&[], |bytes| bytes.as_slice()))?;
        let read = |bytes: &Vec<u8>| {
            MeetingPlace::from_bytes(bytes.as_slice().first_chunk::<PLACE_BYTES>()?)
        };
        let mut places = told.iter().filter_map(read);
        let (Some(place), None) = (places.next(), places.next()) else {
            return Err(Failure::usage("exactly one rank passes the id of ncclCommGetUniqueId"));
        };
        let made = comm::connect(&place, (self.rank as c_int, size), self.device, config)?;
        self.growing.store(false, Ordering::Relaxed);
        Ok(made)
    }

    /// Makes a window; all ranks call it.
    pub(crate) fn register_window(
        &self,
        start: *mut c_void,
        bytes: usize,
        flags: c_int,
    ) -> Result<Handle, Failure> {
        let mine = [(bytes as u64).to_le_bytes().as_slice(), &flags.to_le_bytes()].concat();
        let mut sizes = Vec::new();
        for (rank, told) in self.exchange(&mine)?.iter().enumerate() {
            let (Some(size), Some(theirs)) = (told.first_chunk(), told.last_chunk()) else {
                return Err(Failure::usage(format!("rank {rank} registers no window")));
            };
            if i32::from_le_bytes(*theirs) != flags {
                let words = format!("rank {rank} registers a window with other flags than {flags}");
                return Err(Failure::usage(words));
            }
            sizes.push(u64::from_le_bytes(*size));
        }
        Ok(self.windows.add(start, sizes))
    }

    /// All ranks' bytes, by rank. The group of a revoked communicator has ended: its ranks meet at the first one.
    pub(crate) fn exchange(&self, own: &[u8]) -> Result<Vec<Vec<u8>>, Failure> {
        if self.is_revoked() {
            let settings = Settings::from_environment()?;
            let _meeting = if self.rank == 0 { Some(self.reserved.open(&settings)?) } else { None };
            return self.places[0].exchange((self.rank, self.size), own, &settings);
        }
        let empty = |len| Buffer::from_vec(vec![0; len]);
        let lent = |buffers: &mut [Buffer]| buffers.iter_mut().map(Buffer::lend_all).collect();
        let mut lengths: Vec<Buffer> = (0..self.size).map(|_| empty(8)).collect();
        let length = (own.len() as u64).to_le_bytes().to_vec();
        let gathered =
            self.group.allgather(lent(&mut lengths), Buffer::from_vec(length), self.timeout);
        gathered.wait(None)?;
        let mut outs = Vec::new();
        for length in &lengths {
            let mut bytes = [0; 8];
            length.read(0, &mut bytes);
            outs.push(empty(u64::from_le_bytes(bytes) as usize));
        }
        let gathered =
            self.group.allgather(lent(&mut outs), Buffer::from_vec(own.to_vec()), self.timeout);
        gathered.wait(None)?;
        Ok(outs.iter().map(|out| out.slice(0..out.len()).to_vec()).collect())
    }
}
