//! What callers configure: communicators (`ncclConfig_t`) and single collectives (`ncclCollConfig_t`).
//!
//! Both begin with their size, a magic number and the version that initialised them, and only grow: an older caller's
//! structure is shorter than ours, a newer one's longer, and both are read as far as they go.

use std::ffi::{CStr, c_char, c_int, c_uint};

use netsum_nccl_core::{Failure, Settings};

use crate::pointers::read;

/// The members of `ncclConfig_t` that mean something here or can be wrong, by their offsets.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct CommConfig {
    /// The name that the user gives the communicator.
    pub(crate) name: Option<String>,
    /// Whether sums may go through switches.
    pub(crate) network: Option<bool>,
}

/// `ncclConfig_t`: read member by member, never as a whole.
pub type RawCommConfig = u8;
/// `ncclCollConfig_t`: likewise.
pub type RawCollConfig = u8;

impl CommConfig {
    /// Reads a configuration; NULL: everything is left to netsum. Failures name the member.
    pub(crate) fn read(config: *const RawCommConfig) -> Result<CommConfig, Failure> {
        if config.is_null() {
            return Ok(CommConfig::default());
        }
        let members = Members::read(config, "NCCL_CONFIG_INITIALIZER", "config")?;
        members.one_of("blocking", BLOCKING, 0..=1)?;
        members.one_of("cgaClusterSize", CGA_CLUSTER_SIZE, 0..=CGA_CLUSTER_MAX)?;
        members.range(MIN_CTAS, MAX_CTAS)?;
        members.one_of("splitShare", SPLIT_SHARE, 0..=1)?;
        members.one_of("CTAPolicy", CTA_POLICY, 0..=3)?;
        members.one_of("shrinkShare", SHRINK_SHARE, 0..=1)?;
        members.one_of("nvlsCTAs", NVLS_CTAS, 1..=c_int::MAX)?;
        let network = members.one_of("collnetEnable", COLLNET_ENABLE, 0..=1)?;
        let name = members.text(COMM_NAME)?.filter(|name| !name.is_empty());
        Ok(CommConfig { name, network: network.map(|enabled| enabled == 1) })
    }

    /// Applies what this configures on top of the environment.
    pub(crate) fn apply(&self, mut settings: Settings) -> Settings {
        if self.network == Some(false) {
            settings.controller = None;
        }
        settings.label = self.name.as_deref().map(label);
        settings
    }
}

/// A name as a part of a group's name: the first letters, without those that names of groups do not have.
fn label(name: &str) -> String {
    let plain = |letter: char| {
        if letter.is_ascii_alphanumeric() || "-_.".contains(letter) { letter } else { '_' }
    };
    name.chars().take(LABEL_MAX).map(plain).collect()
}

/// Checks the configuration of one collective; NULL: there is none. Nothing in it changes how netsum runs a collective,
/// so whatever it demands is refused.
pub(crate) fn check_collective(config: *const RawCollConfig) -> Result<(), Failure> {
    if config.is_null() {
        return Ok(());
    }
    let members = Members::read(config, "NCCL_COLLCONFIG_INITIALIZER", "config")?;
    members.range(COLL_MIN_CTAS, COLL_MAX_CTAS)?;
    members.one_of("nvlsCTAs", COLL_NVLS_CTAS, 1..=c_int::MAX)?;
    members.one_of("cgaClusterSize", COLL_CGA_CLUSTER_SIZE, 0..=CGA_CLUSTER_MAX)?;
    members.one_of("CTAPolicy", COLL_CTA_POLICY, 0..=3)?;
    let forced = members.one_of("forceAlgSelection", COLL_FORCE, 0..=1)?.unwrap_or(1) == 1;
    let wanted = members.text(COLL_ALGORITHMS)?.filter(|wanted| !wanted.is_empty());
    if let (Some(wanted), true) = (wanted, forced) {
        return Err(Failure::argument(format!(
            "algSelection {wanted:?}: netsum has none of NCCL's algorithms; NETSUM_MIN_BYTES and the network's plan \
             select the path, and forceAlgSelection = 0 lets any do"
        )));
    }
    if members.word(COLL_EVENT).is_some_and(|event| event != 0) {
        return Err(Failure::argument(
            "launchCompletionEvent: no kernel is launched, so that a CUDA event would never be recorded",
        ));
    }
    Ok(())
}

/// The bytes of a configuration.
struct Members(Vec<u8>);

impl Members {
    /// Failures: bytes that `initialiser` has not written.
    fn read(config: *const u8, initialiser: &str, name: &str) -> Result<Members, Failure> {
        let head = read(config, HEAD, name)?;
        let size = head.first_chunk().map_or(0, |size| usize::from_le_bytes(*size));
        let magic = head.get(size_of::<usize>()..).and_then(|rest| rest.first_chunk());
        let known = magic.map(|magic| c_uint::from_le_bytes(*magic)) == Some(MAGIC);
        if !known || !(HEAD..=CONFIG_MAX).contains(&size) {
            return Err(Failure::argument(format!(
                "the configuration was not made by {initialiser}"
            )));
        }
        Ok(Members(read(config, size, name)?))
    }

    /// A number; `None` if the caller left it open, or does not know it.
    fn number(&self, offset: usize) -> Option<c_int> {
        let bytes = self.0.get(offset..)?.first_chunk()?;
        Some(c_int::from_le_bytes(*bytes)).filter(|&value| value != UNDEFINED)
    }

    fn one_of(
        &self,
        name: &str,
        offset: usize,
        allowed: std::ops::RangeInclusive<c_int>,
    ) -> Result<Option<c_int>, Failure> {
        match self.number(offset) {
            Some(value) if !allowed.contains(&value) => {
                Err(Failure::argument(format!("{name} is {value}, which does not exist")))
            }
            value => Ok(value),
        }
    }

    /// Checks the smallest and largest number of thread blocks.
    fn range(&self, smallest: usize, largest: usize) -> Result<(), Failure> {
        let smallest = self.one_of("minCTAs", smallest, 1..=c_int::MAX)?;
        let largest = self.one_of("maxCTAs", largest, 1..=c_int::MAX)?;
        match (smallest, largest) {
            (Some(smallest), Some(largest)) if smallest > largest => Err(Failure::argument(
                format!("minCTAs is {smallest}, more than maxCTAs, {largest}"),
            )),
            _ => Ok(()),
        }
    }

    fn word(&self, offset: usize) -> Option<usize> {
        self.0.get(offset..)?.first_chunk().map(|bytes| usize::from_le_bytes(*bytes))
    }

    fn text(&self, offset: usize) -> Result<Option<String>, Failure> {
        let text = match self.word(offset) {
            None | Some(0) => return Ok(None),
            Some(address) => address as *const c_char,
        };
        // SAFETY: not NULL; by the interface it is a C string of the caller that lives during the call.
        Ok(Some(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()))
    }
}

const MAGIC: c_uint = 0xcafe_beef;
/// NCCL_CONFIG_UNDEF_INT.
const UNDEFINED: c_int = c_int::MIN;
/// Size, magic and version.
const HEAD: usize = 16;
/// Far more than a configuration of any version has.
const CONFIG_MAX: usize = 4096;
/// Thread blocks of a cluster in CUDA, at most.
const CGA_CLUSTER_MAX: c_int = 8;
const LABEL_MAX: usize = 32;

// Offsets in `ncclConfig_t`, which `tests/newest.rs` compares with NCCL's header.
const BLOCKING: usize = 16;
const CGA_CLUSTER_SIZE: usize = 20;
const MIN_CTAS: usize = 24;
const MAX_CTAS: usize = 28;
const SPLIT_SHARE: usize = 40;
const COMM_NAME: usize = 48;
const COLLNET_ENABLE: usize = 56;
const CTA_POLICY: usize = 60;
const SHRINK_SHARE: usize = 64;
const NVLS_CTAS: usize = 68;

// Offsets in `ncclCollConfig_t`.
const COLL_MIN_CTAS: usize = 24;
const COLL_MAX_CTAS: usize = 28;
const COLL_NVLS_CTAS: usize = 32;
const COLL_CGA_CLUSTER_SIZE: usize = 36;
const COLL_ALGORITHMS: usize = 40;
const COLL_FORCE: usize = 48;
const COLL_CTA_POLICY: usize = 52;
const COLL_EVENT: usize = 64;
