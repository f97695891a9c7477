//! Names of abstract Unix sockets.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read};

/// A name that begins with `prefix` and that nobody can guess: a process that cannot read the name from the rendezvous
/// can neither take the name before its owner does, nor connect.
pub fn unguessable_name(prefix: &str) -> io::Result<String> {
    let mut random = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut random)?;
    let mut name = format!("{prefix}-");
    for byte in random {
        write!(name, "{byte:02x}").expect("writing to a string does not fail");
    }
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_differ_in_all_their_digits() {
        let [one, other] = [(); 2].map(|()| unguessable_name("netsum").unwrap());
        assert_eq!(one.len(), "netsum-".len() + 32);
        assert!(one.starts_with("netsum-") && one != other);
    }
}
