//! Groups whose ranks have credentials: sums over TLS, and ranks that do not belong together.

mod support;

use std::path::{Path, PathBuf};
use std::time::Duration;

use netsum_collective::{Combine, Dtype, Group, GroupConfig, Options, ReduceOp};
use netsum_identity::{Authority, Identity, Validity};
use support::{SOON, bytes, config, with_group};

/// The folder of new credentials in fabric `lab`.
fn issue(place: &Path, role: &str) -> PathBuf {
    let authority = Authority::create(&place.join("ca"), "lab").unwrap();
    let identity = Identity::new("lab", role.parse().unwrap()).unwrap();
    let folder = place.join(role.replace('/', "-"));
    let issued = authority.issue(&identity, Validity::lasting(Duration::from_secs(3600)));
    issued.unwrap().save(&folder).unwrap();
    folder
}

fn with_credentials(rank: u32, size: u32, folder: Option<&PathBuf>) -> GroupConfig {
    let config = config(rank, size, "secure");
    let options = Options { credentials: folder.cloned(), ..config.options.clone() };
    GroupConfig { options, ..config }
}

#[test]
fn ranks_with_credentials_add_over_tls() {
    let place = tempfile::tempdir().unwrap();
    let folders = ["tenant/a", "tenant/a", "operator"].map(|role| issue(place.path(), role));
    let configure = |rank| with_credentials(rank, 3, Some(&folders[rank as usize]));
    with_group(3, configure, |rank, group| {
        // Longer than a segment of the mesh, and not a whole number of records.
        let mut buffer = support::buffer(&vec![rank as u8 + 1; (5 << 20) + 3]);
        let sum = Combine::Plain(ReduceOp::Sum);
        group.allreduce(&mut buffer, Dtype::U8, sum, SOON).wait(None).unwrap();
        assert!(bytes(&buffer).iter().all(|&byte| byte == 6));
    });
}

/// What both ranks say when they connect.
fn errors(folders: [Option<&PathBuf>; 2]) -> [String; 2] {
    let rank = |rank: u32| Group::new(with_credentials(rank, 2, folders[rank as usize])).unwrap();
    let groups = [rank(0), rank(1)];
    let addresses: Vec<Vec<u8>> = groups.iter().map(Group::address).collect();
    groups.map(|group| group.connect(&addresses).unwrap_err().to_string())
}

#[test]
fn ranks_of_two_tenants_and_ranks_without_credentials_are_refused_at_once() {
    let place = tempfile::tempdir().unwrap();
    let [a, b, viewer] = ["tenant/a", "tenant/b", "viewer"].map(|role| issue(place.path(), role));
    let words = "rank 1 is spiffe://lab/tenant/b, and other ranks are of tenant \"a\"";
    for error in errors([Some(&a), Some(&b)]) {
        assert!(error.contains(words), "{error}");
    }
    for error in errors([Some(&a), Some(&viewer)]) {
        assert!(error.contains("rank 1 is spiffe://lab/viewer, and cannot run workers"), "{error}");
    }
    let [secured, plain] = errors([Some(&a), None]);
    assert!(secured.contains("it has no credentials, and this rank has"), "{secured}");
    assert!(plain.contains("it has credentials, and this rank has none"), "{plain}");
}
