//! Groups whose ranks have credentials: sums over TLS, also over a tree plan, and ranks that do not belong together.

mod support;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use netsum_collective::planned::PlanSource;
use netsum_collective::{Combine, Dtype, Group, GroupConfig, Network, Options, ReduceOp};
use netsum_identity::{Authority, Identity, Validity};
use netsum_plan::pack::pack;
use netsum_topo::links::{Collective, LinkKind, built};
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

/// A relay before an address, which hears all bytes in both directions.
fn overhear(target: String, heard: &Arc<Mutex<Vec<u8>>>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let heard = heard.clone();
    thread::spawn(move || {
        for near in listener.incoming().flatten() {
            let Ok(far) = TcpStream::connect(&target) else { continue };
            for (from, to) in [(&near, &far), (&far, &near)] {
                let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                let heard = heard.clone();
                thread::spawn(move || {
                    let mut bytes = [0; 4096];
                    while let Ok(count @ 1..) = from.read(&mut bytes) {
                        heard.lock().unwrap().extend_from_slice(&bytes[..count]);
                        if to.write_all(&bytes[..count]).is_err() {
                            break;
                        }
                    }
                    let _ = to.shutdown(Shutdown::Write);
                });
            }
        }
    });
    address
}

#[test]
fn sums_over_a_tree_plan_are_encrypted_between_hosts() {
    let place = tempfile::tempdir().unwrap();
    let folder = issue(place.path(), "tenant/a");
    let graph = built("dgx1v").unwrap().only(&[LinkKind::Nvlink]).unwrap();
    let graph = graph.select(&["0", "1", "4"]).unwrap();
    let plan = pack(&graph, Collective::Allreduce).unwrap().plan(&graph);
    let file = place.path().join("plan.json");
    std::fs::write(&file, serde_json::to_string(&plan).unwrap()).unwrap();
    for secured in [false, true] {
        let group = |rank| {
            let config = with_credentials(rank, 3, secured.then_some(&folder));
            let mut source = PlanSource::new(file.clone());
            source.min_bytes = Some(0);
            Group::new(GroupConfig { plan: Some(source), ..config }).unwrap()
        };
        let groups: Vec<Group> = (0..3).map(group).collect();
        let heard = Arc::new(Mutex::new(Vec::new()));
        let relayed = |group: &Group| {
            let mut address: serde_json::Value = serde_json::from_slice(&group.address()).unwrap();
            let target = address["port"]["tcp"].as_str().unwrap().to_owned();
            address["port"]["tcp"] = overhear(target, &heard).into();
            address["port"]["machine"] = "elsewhere".into();
            serde_json::to_vec(&address).unwrap()
        };
        let addresses: Vec<Vec<u8>> = groups.iter().map(relayed).collect();
        thread::scope(|scope| {
            for (rank, group) in groups.iter().enumerate() {
                let mut addresses = addresses.clone();
                addresses[rank] = group.address();
                scope.spawn(move || {
                    group.connect(&addresses).unwrap();
                    let mut buffer = support::buffer(&[0x11 * (rank as u8 + 1); 100_003]);
                    let sum = Combine::Plain(ReduceOp::Sum);
                    group.allreduce(&mut buffer, Dtype::U8, sum, SOON).wait(None).unwrap();
                    assert!(bytes(&buffer).iter().all(|&byte| byte == 0x66));
                    let stats = serde_json::to_value(group.stats()).unwrap();
                    assert_eq!(stats["path"], "plan", "{stats}");
                    group.barrier(SOON).wait(None).unwrap();
                    group.close();
                });
            }
        });
        let heard = heard.lock().unwrap();
        assert!(heard.len() > 200_000, "{} bytes went through the relays", heard.len());
        let readable = |byte: u8| heard.windows(16).any(|bytes| bytes == [byte; 16]);
        let found = [0x11, 0x22, 0x33, 0x66].map(readable).contains(&true);
        assert_eq!(found, !secured, "values or sums can be read");
    }
}

#[test]
fn ucx_is_refused_with_credentials_unless_its_network_is_trusted() {
    let place = tempfile::tempdir().unwrap();
    let folder = issue(place.path(), "tenant/a");
    let over_ucx = |trusted_network| {
        let config = with_credentials(0, 1, Some(&folder));
        let options = Options { network: Network::Ucx, trusted_network, ..config.options.clone() };
        Group::new(GroupConfig { options, ..config }).err().map(|error| error.to_string())
    };
    let refused = over_ucx(false).unwrap();
    assert!(refused.contains("UCX neither encrypts nor authenticates messages"), "{refused}");
    // Its library may be missing here.
    let allowed = over_ucx(true).unwrap_or_default();
    assert!(!allowed.contains("neither encrypts"), "{allowed}");
}
