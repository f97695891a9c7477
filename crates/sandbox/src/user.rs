//! Users of the system.

use rustix::process::{Gid, Uid};

use crate::SandboxError;

const PASSWORDS: &str = "/etc/passwd";
const GROUPS: &str = "/etc/group";

/// A user and the user's groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    pub(crate) uid: Uid,
    pub(crate) gid: Gid,
    /// All groups.
    pub(crate) groups: Vec<Gid>,
}

impl User {
    /// The user of that name in /etc/passwd, or of the numbers UID:GID. Errors: there is none.
    pub fn find(name: &str) -> Result<User, SandboxError> {
        if let Some(user) = User::of_numbers(name) {
            return Ok(user);
        }
        let read = |file| {
            std::fs::read_to_string(file)
                .map_err(|source| SandboxError::Lookup { name: name.to_owned(), source })
        };
        let groups = read(GROUPS).unwrap_or_default();
        let user = User::of_entry(name, &read(PASSWORDS)?, &groups);
        user.ok_or_else(|| SandboxError::NoUser(name.to_owned()))
    }

    fn of_numbers(text: &str) -> Option<User> {
        let (uid, gid) = text.split_once(':')?;
        let (uid, gid) = (number(uid)?, number(gid)?);
        Some(User {
            uid: Uid::from_raw(uid),
            gid: Gid::from_raw(gid),
            groups: vec![Gid::from_raw(gid)],
        })
    }

    /// `NAME:x:UID:GID:…` in the text of the password file, and `GROUP:x:GID:NAME,…` in that of the group file.
    fn of_entry(name: &str, passwords: &str, groups: &str) -> Option<User> {
        let fields = |line: &str| line.split(':').map(str::to_owned).collect::<Vec<_>>();
        let entry = passwords.lines().map(fields).find(|fields| fields[0] == name)?;
        let (uid, gid) = (number(entry.get(2)?)?, Gid::from_raw(number(entry.get(3)?)?));
        let member = |fields: &Vec<String>| {
            fields.get(3).is_some_and(|names| names.split(',').any(|member| member == name))
        };
        let of_groups = groups.lines().map(fields).filter(member);
        let others = of_groups.filter_map(|fields| Some(Gid::from_raw(number(fields.get(2)?)?)));
        let mut groups: Vec<Gid> = [gid].into_iter().chain(others).collect();
        groups.dedup();
        Some(User { uid: Uid::from_raw(uid), gid, groups })
    }
}

/// An id; the largest number means "unchanged" to the system, so it is none.
fn number(text: &str) -> Option<u32> {
    text.parse().ok().filter(|&id| id != u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENTRIES: &str =
        "root:x:0:0:root:/root:/bin/sh\nnetsum:x:990:980::/:/usr/sbin/nologin\nodd:x\n";
    const MEMBERS: &str = "root:x:0:\nbpf:x:77:other,netsum\nnetsum:x:980:\nx:x:5:netsumx\n";

    #[test]
    fn users_are_found_with_their_groups() {
        let user = User::of_entry("netsum", ENTRIES, MEMBERS).unwrap();
        assert_eq!((user.uid.as_raw(), user.gid.as_raw()), (990, 980));
        assert_eq!(user.groups.iter().map(|gid| gid.as_raw()).collect::<Vec<_>>(), [980, 77]);
        assert_eq!(User::of_entry("nets", ENTRIES, MEMBERS), None);
        assert_eq!(User::of_entry("odd", ENTRIES, MEMBERS), None);
    }

    #[test]
    fn numbers_are_users_too() {
        let user = User::find("12:34").unwrap();
        assert_eq!((user.uid.as_raw(), user.gid.as_raw()), (12, 34));
        for wrong in ["12", "no such user", "1:4294967295", ":"] {
            let error = User::find(wrong).unwrap_err().to_string();
            assert!(error.contains(&format!("no user {wrong:?}")), "{error}");
        }
    }
}
