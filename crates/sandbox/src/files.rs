//! Files: all may be read, as far as the user may; none may be executed, and few be written.

use std::path::PathBuf;

use landlock::{
    ABI, AccessFs, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError, RulesetStatus,
    path_beneath_rules,
};

/// The newest version of Landlock that is used; older systems restrict what they know.
const VERSION: ABI = ABI::V3;

/// Allows writes beneath `writable` only. Errors: the reason why nothing is restricted.
pub(crate) fn restrict(writable: &[PathBuf]) -> Result<(), String> {
    match rules(writable).map_err(|error| error.to_string())?.ruleset {
        RulesetStatus::NotEnforced => Err("the system does not support it".to_owned()),
        RulesetStatus::PartiallyEnforced | RulesetStatus::FullyEnforced => Ok(()),
    }
}

fn rules(writable: &[PathBuf]) -> Result<landlock::RestrictionStatus, RulesetError> {
    let writes = AccessFs::from_write(VERSION);
    Ruleset::default()
        .handle_access(writes | AccessFs::Execute)?
        .create()?
        .add_rules(path_beneath_rules(writable, writes))?
        .restrict_self()
}
