//! Addresses and outcomes, made from hw/rtl/registers.toml by hw/tools/registers.py.

use netsum_proto::DropReason;

pub(super) const ID: u32 = 0x00000;
pub(super) const VERSION: u32 = 0x00004;
pub(super) const SHAPE: u32 = 0x00008;
pub(super) const MEMORY: u32 = 0x0000c;
pub(super) const STATUS: u32 = 0x00010;
pub(super) const CLEAR: u32 = 0x00014;
pub(super) const OUTCOMES: u32 = 0x00080;
pub(super) const LEASES: u32 = 0x01000;
pub(super) const CHILDREN: u32 = 0x10000;
pub(super) const TEMPLATES: u32 = 0x20000;

pub(super) const WORD_JOB: u32 = 0;
pub(super) const WORD_KEY: u32 = 1;
pub(super) const WORD_WINDOW: u32 = 2;
pub(super) const WORD_RING: u32 = 3;
pub(super) const WORD_ELEMENTS: u32 = 4;
pub(super) const WORD_VALID: u32 = 5;
pub(super) const WORD_MEMBERS: u32 = 8;
pub(super) const WORD_PARENT: u32 = 12;

/// The switch's reason for each outcome, in counter order; `None` if the packet was taken.
pub(super) const DROPS: [Option<DropReason>; 21] = [
    None,
    None,
    None,
    Some(DropReason::Duplicate),
    Some(DropReason::Duplicate),
    Some(DropReason::Mismatch),
    Some(DropReason::Duplicate),
    Some(DropReason::Mismatch),
    Some(DropReason::Unexpected),
    Some(DropReason::TooOld),
    Some(DropReason::BeyondWindow),
    Some(DropReason::TooLarge),
    Some(DropReason::WrongDirection),
    Some(DropReason::NotANeighbour),
    Some(DropReason::FutureEpoch),
    Some(DropReason::StaleEpoch),
    Some(DropReason::NoLease),
    Some(DropReason::PayloadLength),
    Some(DropReason::EmptyFragment),
    Some(DropReason::Reserved),
    Some(DropReason::TruncatedHeader),
];
