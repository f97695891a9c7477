//! The best trees on any fabric of GPUs, with a proof: bounds, exact packing, plans.

mod baseline;
mod blink;
mod bound;
mod choice;
mod convert;
pub mod cost;
mod flow;
mod front;
mod hybrid;
mod losses;
mod lp;
mod modular;
mod net;
mod offers;
mod packed;
mod packing;
mod phases;
mod programme;
mod rails;
mod report;
mod search;
mod servers;
mod spread;
mod tree;

pub use baseline::{Baselines, pack_rings};
pub use blink::pack_blink;
pub use bound::{ArcLength, Bound, Certificate, gbytes};
pub use front::{coarse, front};
pub use hybrid::{Hybrid, KindCost, Part, pack_hybrid, split};
pub use losses::{Loss, Replanned, replan, without};
pub use net::{Arc, Net, servers};
pub use packed::{Flow, Packed};
pub use packing::{bound, pack, pack_phases};
pub use report::{Choice, Explanation, Report, explain, report};
pub use tree::{Hop, Tree};
