//! User and capabilities.

use rustix::io::Errno;
use rustix::thread::{self, CapabilitySet, CapabilitySets};

use crate::{SandboxError, User};

/// A capability of the system.
pub type Privilege = CapabilitySet;

/// Becomes `user`, and gives up all capabilities but `keep`, now and for programs that the process might start.
pub(crate) fn drop(user: Option<&User>, keep: &[Privilege]) -> Result<(), SandboxError> {
    let refused = |step| move |error: Errno| SandboxError::Refused { step, source: error.into() };
    let wanted = keep.iter().fold(CapabilitySet::empty(), |all, &one| all | one);
    if let Some(user) = user {
        let become_user = "become another user";
        thread::set_keep_capabilities(true).map_err(refused(become_user))?;
        thread::set_thread_groups(&user.groups).map_err(refused("leave the groups of root"))?;
        thread::set_thread_res_gid(user.gid, user.gid, user.gid).map_err(refused(become_user))?;
        thread::set_thread_res_uid(user.uid, user.uid, user.uid).map_err(refused(become_user))?;
    }
    let has = thread::capabilities(None).map_err(refused("read the capabilities"))?;
    let kept = wanted & has.permitted;
    let sets =
        CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    thread::set_capabilities(None, sets).map_err(refused("give up capabilities"))?;
    thread::set_no_new_privs(true).map_err(refused("give up new privileges"))
}
