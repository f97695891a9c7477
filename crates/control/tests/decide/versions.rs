//! Processes of other versions beside this controller.

use netsum_control::pb;
use prost::Message;

use crate::world::World;

fn versions(oldest: u32, newest: u32) -> Option<pb::VersionRange> {
    Some(pb::VersionRange { oldest, newest })
}

#[test]
fn a_rank_of_other_packets_is_refused_and_told_what_to_upgrade() {
    let mut world = World::standard();
    let job = world.create(2);
    world.packets = versions(2, 3);
    let refused = world.join(job, 0, "h0", 0).unwrap_err();
    assert!(
        format!("{refused:?}").contains(
            "rank 0 speaks versions 2 to 3 of packets of sums, plans of this controller are for version 1; \
             upgrade the controller"
        ),
        "{refused:?}"
    );
    // One that speaks them too is welcome, and so is one of before.
    world.packets = versions(1, 2);
    world.join(job, 0, "h0", 0).unwrap();
    world.packets = None;
    world.join(job, 1, "h2", 0).unwrap();
    assert_eq!(world.roots(job), ["spine0", "spine1"]);
}

#[test]
fn a_switch_of_other_packets_is_planned_around() {
    let mut world = World::standard();
    world.down("spine1");
    world.packets = versions(2, 2);
    world.up("spine1", &[]).unwrap();
    world.packets = None;
    let job = world.create(2);
    world.join(job, 0, "h0", 0).unwrap();
    world.join(job, 1, "h2", 0).unwrap();
    assert_eq!(world.roots(job), ["spine0"]);
    let reason = &world.plan(job).reason;
    assert!(
        reason.contains("spine1 speaks version 2 of packets of sums"),
        "the plan says why: {reason}"
    );
}

/// The bytes of a switch's hello and a rank's join as version 0.2.0 has sent them, which knows nothing of versions of
/// packets.
#[test]
fn the_hellos_of_version_0_2_0_are_understood() {
    // Name, address, memory, MTU, and that it has AES instructions.
    let hello = b"\x0a\x05rack0\x12\x0f127.77.2.1:7701\x18\x80\x80\x80\x20\x28\xdc\x0b\x60\x01";
    let hello = pb::SwitchHello::decode(&hello[..]).unwrap();
    assert_eq!((hello.name.as_str(), hello.udp_address.as_str()), ("rack0", "127.77.2.1:7701"));
    assert_eq!((hello.memory_bytes, hello.mtu, hello.aes), (64 << 20, 1500, true));
    assert_eq!((hello.packets, hello.all_collectives), (None, false));
    // job 7, rank 1, host "h1", its address, process 9, MTU 1500.
    let join = b"\x08\x07\x10\x01\x1a\x02h1\x22\x0f127.77.1.2:4000\x30\x09\x38\xdc\x0b";
    let join = pb::Join::decode(&join[..]).unwrap();
    assert_eq!((join.job, join.rank, join.host.as_str()), (7, 1, "h1"));
    assert_eq!((join.pid, join.mtu, join.packets), (9, 1500, None));
    // What this version says in addition is skipped by a process that does not know it.
    let new = pb::SwitchHello { packets: versions(1, 1), ..hello.clone() }.encode_to_vec();
    let old = hello.encode_to_vec();
    assert!(new.starts_with(&old) && new.len() > old.len(), "fields are added, none is changed");
}
