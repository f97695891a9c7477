//! A fragment on its way up through a switch: added to its slot, or forwarded.

use netsum_wire::Parties;
use netsum_wire::atp::{Flags, Header, Level};

use super::lease::Members;
use super::slots::{Fragment, Slot, Sum};
use super::switch::{Switch, Transmit};
use crate::children::ChildSet;
use crate::values::Values;
use crate::{DropReason, Time};

impl<V: Values> Switch<V> {
    /// Handles a child's fragment: adds it to its slot, or forwards it to the server.
    pub(super) fn contribute(
        &mut self,
        now: Time,
        child: usize,
        header: &Header,
        payload: &V::Payload,
    ) -> Result<(), DropReason> {
        let tenant = &self.tenant((header.job, header.tree));
        let everyone = tenant.lease.everyone();
        let row = self.config.policy.row(&tenant.share, header.slot, self.config.slots);
        let at_server = matches!(tenant.lease.members, Members::Server { .. });
        // A slot would only delay what one rank contributes alone.
        let adds = everyone != 1 && !matches!(header.parties, Parties::FromOne(_));
        let Some(row) = row.filter(|_| header.arithmetic.in_slots() && adds) else {
            return self.pass_up(header, payload);
        };
        if at_server && header.flags.resend {
            // A slot counts whole racks once each; their individual fragments are sent again, too.
            if self.slots[row].fragment().is_some_and(|f| f.has_number_of(header)) {
                self.free(row);
                self.slots[row] = Slot::Vacated(Fragment::of(header));
            }
            return self.pass_up(header, payload);
        }
        if at_server && header.workers != Header::all(header.rack_fan_in) {
            return self.pass_up(header, payload);
        }
        match &self.slots[row] {
            Slot::Held(sum) if sum.fragment.is_of(header) => {
                return self.add(now, row, child, everyone, header, payload);
            }
            slot if slot.fragment().is_some_and(|f| f.has_number_of(header)) => {
                return self.pass_up(header, payload);
            }
            Slot::Held(_) => {}
            _ => return self.take(now, row, child, header, payload),
        }
        if self.preempt(now, row, header) {
            return self.take(now, row, child, header, payload);
        }
        self.count((header.job, header.tree), |c| c.collisions += 1);
        let flags = Flags { collision: true, ..header.flags };
        self.pass_up(&Header { flags, ..*header }, payload)
    }

    /// Takes a free slot for the first member of a fragment.
    fn take(
        &mut self,
        now: Time,
        row: usize,
        child: usize,
        header: &Header,
        payload: &V::Payload,
    ) -> Result<(), DropReason> {
        let key = (header.job, header.tree);
        let share = &self.tenant(key).share;
        if header.flags.resend || !self.config.policy.may_take(share) {
            return self.pass_up(header, payload);
        }
        let values = self.values.store(payload).ok_or(DropReason::NoMemory)?;
        self.slots[row] = Slot::Held(Sum {
            fragment: Fragment::of(header),
            arrived: 1 << child,
            complete: false,
            overflow: header.flags.overflow,
            ecn: header.flags.ecn,
            values,
            touched: now,
        });
        self.held += 1;
        if self.next_scan.is_none() {
            self.next_scan = Some(self.scan_after(now));
        }
        let tenant = self.tenants.get_mut(key.0, key.1).expect("it was found");
        tenant.share.held += 1;
        tenant.counters.added += 1;
        self.began[row] = tenant.meter.begin(now, child);
        Ok(())
    }

    /// Adds another member of the fragment that holds the slot.
    fn add(
        &mut self,
        now: Time,
        row: usize,
        child: usize,
        everyone: u32,
        header: &Header,
        payload: &V::Payload,
    ) -> Result<(), DropReason> {
        let Slot::Held(sum) = &mut self.slots[row] else { unreachable!("the caller looked") };
        let bit = 1 << child;
        let key = (header.job, header.tree);
        sum.ecn |= header.flags.ecn;
        let known = sum.arrived & bit != 0;
        if !known {
            sum.overflow |= self.values.combine(sum.values, header.arithmetic, payload);
            sum.overflow |= header.flags.overflow;
            sum.arrived |= bit;
            sum.touched = now;
            let (began, last) = (self.began[row], sum.arrived == everyone);
            if let Some(tenant) = self.tenants.get_mut(key.0, key.1) {
                tenant.counters.added += 1;
                tenant.meter.arrive(now, child, began, last);
            }
        }
        if header.flags.resend {
            self.count(key, |c| c.released += 1);
            self.send_up(row, true);
            self.vacate(row, true);
            return Ok(());
        }
        if known {
            self.count(key, |c| c.duplicates += 1);
            return Err(DropReason::Duplicate);
        }
        let Slot::Held(sum) = &mut self.slots[row] else { unreachable!("nothing freed it") };
        if sum.arrived == everyone {
            sum.complete = true;
            self.send_up(row, false);
            self.count(key, |c| c.completed += 1);
        }
        Ok(())
    }

    /// Preempts the slot for `header`'s fragment, if the policy allows it; returns whether it did.
    fn preempt(&mut self, now: Time, row: usize, header: &Header) -> bool {
        let Slot::Held(sum) = &self.slots[row] else { return true };
        let key = sum.fragment.tenant();
        let holder = &self.tenant(key).share;
        let contender = &self.tenant((header.job, header.tree)).share;
        let policy = self.config.policy;
        let wanted = !header.flags.resend && policy.may_take(contender);
        if !wanted || !policy.yields(now, sum.touched, sum.complete, holder, contender) {
            return false;
        }
        self.vacate(row, false);
        self.count(key, |c| c.preempted += 1);
        true
    }

    /// Sends the sum of a slot towards the server.
    fn send_up(&mut self, row: usize, resend: bool) {
        let Slot::Held(sum) = &self.slots[row] else { return };
        let first = *sum.fragment.header();
        let lease = &self.tenant(sum.fragment.tenant()).lease;
        let (workers, racks) = match &lease.members {
            Members::Rack { rack, .. } => (sum.arrived, 1 << rack),
            Members::Server { .. } if sum.arrived.count_ones() == 1 => (first.workers, sum.arrived),
            Members::Server { .. } => (0, sum.arrived),
        };
        let flags = Flags { resend, collision: false, overflow: sum.overflow, ecn: sum.ecn };
        let header = Header { level: Level::Server, flags, workers, racks, ..first };
        let payload = Some(sum.values);
        self.outbox.push_back(Transmit { to: lease.parent, header, payload });
    }

    /// Releases a slot whose fragment is not done. Sends its sum, unless that was `sent`.
    pub(super) fn vacate(&mut self, row: usize, sent: bool) {
        let Slot::Held(sum) = &self.slots[row] else { return };
        let fragment = sum.fragment;
        if !sum.complete && !sent {
            self.send_up(row, false);
        }
        self.free(row);
        self.slots[row] = Slot::Vacated(fragment);
    }

    /// Empties a slot.
    pub(super) fn free(&mut self, row: usize) {
        if let Slot::Held(sum) = std::mem::replace(&mut self.slots[row], Slot::Empty) {
            self.values.free(sum.values);
            self.held -= 1;
            let (job, tree) = sum.fragment.tenant();
            if let Some(tenant) = self.tenants.get_mut(job, tree) {
                tenant.share.held -= 1;
                if sum.arrived != tenant.lease.everyone() {
                    let lacking = ChildSet::from(!sum.arrived);
                    tenant.meter.give_up(tenant.last_seen, self.began[row], lacking);
                }
            }
        }
    }

    /// Forwards a packet towards the server, unchanged but for marks.
    fn pass_up(&mut self, header: &Header, payload: &V::Payload) -> Result<(), DropReason> {
        let values = self.values.store(payload).ok_or(DropReason::NoMemory)?;
        let tenant = self.tenants.get_mut(header.job, header.tree).expect("it was found");
        tenant.counters.passed += 1;
        let header = Header { level: Level::Server, ..*header };
        self.outbox.push_back(Transmit { to: tenant.lease.parent, header, payload: Some(values) });
        self.values.free(values);
        Ok(())
    }
}
