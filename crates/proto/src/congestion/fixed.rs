//! No reaction.

use super::{Arrival, Rule};
use crate::visit::Visitor;

/// A fixed number of fragments in flight.
#[derive(Clone, Debug)]
pub(super) struct Fixed(pub(super) u16);

impl Rule for Fixed {
    fn window(&self) -> f64 {
        self.0.into()
    }

    fn on_result(&mut self, _: &Arrival, _: f64) {}

    fn visit(&mut self, _: &mut impl Visitor, _: u64) {}

    fn on_loss(&mut self, _: u64, _: u64) {}
}
