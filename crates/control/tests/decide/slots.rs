//! Jobs of the protocols with slots: which servers and racks, tenants, what happens when one dies, and `auto`.

use netsum_control::JobPlan;
use netsum_control::decide::{Event, Settings};
use netsum_control::pb;
use netsum_control::pb::slot_grant::Level;
use netsum_lease::Racks;
use netsum_topo::{Addressing, Bytes, Fabric, NodeId, Server, SlotPolicy, Tenant, leaf_spine};
use netsum_wire::tag::{JobKey, Mac};

use crate::world::{KEY, NOTICE_MS, RATE, World, checked};

/// Two racks of two hosts; a server on h0 and one on h3.
fn fabric() -> Fabric {
    let mut fabric = leaf_spine(2, 2, 2, RATE, RATE, Addressing::default()).unwrap();
    for (number, host) in [0, 3].into_iter().enumerate() {
        let address = (fabric.hosts[host].address, 7801).into();
        let (name, memory) = (format!("ps{number}"), Bytes(64 << 20));
        fabric.servers.push(Server { name, address, memory, metrics: None });
    }
    let tenant = |name: &str| Tenant::named(name);
    fabric.tenants = vec![
        Tenant { jobs: 1, guaranteed: 100, limit: 300, priority: 5, ..tenant("gold") },
        tenant("default"),
    ];
    fabric
}

fn world(fabric: Fabric) -> World {
    let mut world = World::new(fabric, Settings::default());
    world.all_up();
    world
}

/// A switch, if one adds, and the ranks of a rack.
type NamedRack = (Option<String>, Vec<u32>);

fn rack(switch: Option<&str>, ranks: &[u32]) -> NamedRack {
    (switch.map(str::to_owned), ranks.to_vec())
}

/// The switch of the server's rack, and the racks of a tree.
fn racks(plan: &pb::Plan, tree: usize) -> (Option<String>, Vec<NamedRack>) {
    let plan = JobPlan::try_from(plan).unwrap();
    let name = |node: NodeId| plan.aggregators[node.0 as usize].name.clone();
    let racks = Racks::of(&plan.plan.trees[tree]).unwrap();
    let named = racks.racks.into_iter().map(|rack| (rack.switch.map(name), rack.ranks));
    (racks.middle.map(name), named.collect())
}

#[test]
fn a_tree_per_server_through_both_levels() {
    let mut world = world(fabric());
    let job = world.job_of("atp", "gold");
    let plan = world.plan(job).clone();
    checked(&plan, 4).unwrap();
    assert_eq!(
        (plan.protocol.as_str(), plan.reason.as_str(), plan.choice.as_str()),
        ("atp", "", "")
    );
    assert_eq!((world.roots(job), plan.slot_space), (vec!["ps0", "ps1"], 4096));
    let (middle, first) = racks(&plan, 0);
    assert_eq!(middle.as_deref(), Some("rack0"));
    assert_eq!(first, [rack(None, &[0]), rack(None, &[1]), rack(Some("rack1"), &[2, 3])]);
    let (middle, second) = racks(&plan, 1);
    assert_eq!(middle.as_deref(), Some("rack1"));
    assert_eq!(second, [rack(Some("rack0"), &[0, 1]), rack(None, &[2]), rack(None, &[3])]);
    let own = JobPlan::try_from(&plan).unwrap().attachments(2).unwrap();
    assert_eq!((own[0].switch.as_str(), own[1].switch.as_str()), ("rack1", "rack1"));
    world.check_leases();
    let granted = |switch: &str, tree: u32| {
        let found = world.granted.iter().find(|(at, lease)| at == switch && lease.tree == tree);
        found.unwrap().1.clone()
    };
    let (server, middle, far) = (granted("ps0", 0), granted("rack0", 0), granted("rack1", 0));
    let slot = |lease: &pb::Lease| lease.slot.clone().unwrap();
    let levels = [&server, &middle, &far].map(|lease| slot(lease).level());
    assert_eq!(levels, [Level::Server, Level::ServerSwitch, Level::Rack]);
    assert_eq!((slot(&far).rack, slot(&far).racks.len()), (2, 3));
    assert_eq!(slot(&server).racks[2].ranks, [2, 3]);
    let bits = |lease: &pb::Lease| -> Vec<_> {
        lease.children.iter().map(|child| (child.racks, child.workers)).collect()
    };
    assert_eq!(bits(&server), [(0b111, u32::MAX)]);
    assert_eq!(bits(&middle), [(1, 1), (2, 1), (4, 3)]);
    assert_eq!(bits(&far), [(4, 1), (4, 2)]);
    // The claim is shared by the job's two servers.
    let claim = slot(&middle);
    assert_eq!((claim.guaranteed, claim.limit, claim.priority), (50, 150, 5));
    assert_eq!(far.parent_address, world.fabric.switch("rack0").unwrap().address.to_string());
}

/// Slots are for sums: a copy claims none, and takes no part of the claim.
#[test]
fn trees_of_servers_have_copies_without_slots() {
    let mut world = world(fabric());
    let job = world.create_as(pb::CreateJobRequest {
        size: 4,
        min_bytes: Some(0),
        protocol: "atp".to_owned(),
        tenant: "gold".to_owned(),
        all_collectives: true,
        ..Default::default()
    });
    for rank in 0..4 {
        world.join(job, rank, &format!("h{rank}"), 0).unwrap();
    }
    let plan = world.plan(job).clone();
    checked(&plan, 4).unwrap();
    assert_eq!((plan.copies, plan.slot_space), (true, 4096));
    assert_eq!(world.roots(job), ["ps0", "ps1", "ps0", "ps1"]);
    world.check_leases();
    let claims: Vec<(u32, u32)> = (0..4)
        .map(|tree| {
            let is_there = |(at, lease): &&(String, pb::Lease)| at == "rack0" && lease.tree == tree;
            let lease = &world.granted.iter().find(is_there).unwrap().1;
            let slot = lease.slot.as_ref().unwrap();
            (slot.guaranteed, slot.limit)
        })
        .collect();
    assert_eq!(claims, [(50, 150), (50, 150), (0, 150), (0, 150)]);
}

#[test]
fn keys_go_to_workers_and_leases_alone() {
    let cases = ["atp", "switchml", "panama"].map(|protocol| [(false, protocol), (true, protocol)]);
    for (trusted, protocol) in cases.into_iter().flatten() {
        let mut world = world(Fabric { trusted, ..fabric() });
        let job = world.job_of(protocol, "");
        let key_id = world.plan(job).key_id;
        assert_eq!(key_id != 0, !trusted, "{protocol}");
        assert!(!world.granted.is_empty());
        for (switch, lease) in &world.granted {
            let neighbours = lease.children.len() + usize::from(!lease.parent_address.is_empty());
            let keys = lease.hop_keys.len();
            assert_eq!(keys, if trusted { 0 } else { neighbours }, "{protocol} at {switch}");
            assert_eq!(lease.secrets().unwrap().is_some(), !trusted);
        }
        let shown = serde_json::to_string(&world.state().status(0)).unwrap();
        assert!(shown.contains(&format!("\"tags\":{}", !trusted)), "{shown}");
        assert!(!shown.contains("42,42"), "the key is in the status: {shown}");
        assert!(!format!("{:?}", world.granted).contains("42, 42"), "a key in a log");
        // The next epoch's keys are derived from the same one.
        world.down("rack0");
        assert_eq!(world.plan(job).key_id, key_id);
    }
}

#[test]
fn a_job_has_the_mac_that_is_fast_at_all_switches() {
    for slow in [None, Some("rack1"), Some("ps0")] {
        let mut world = World::new(fabric(), Settings::default());
        world.aes = true;
        world.all_up();
        if let Some(slow) = slow {
            world.down(slow);
            world.aes = false;
            world.up(slow, &[]).unwrap();
        }
        world.job_of("atp", "");
        let expected = if slow.is_none() { Mac::Aegis } else { Mac::Nh };
        let has_expected = |lease: &pb::Lease| {
            let keys = lease.secrets().unwrap().unwrap();
            keys.iter().all(|keys| keys.up.mac() == expected)
        };
        assert!(world.granted.iter().all(|(_, lease)| has_expected(lease)), "slow: {slow:?}");
        // A job keeps its MAC.
        world.aes = false;
        world.down("rack0");
        world.up("rack0", &[]).unwrap();
        assert!(world.granted.iter().all(|(_, lease)| has_expected(lease)), "slow: {slow:?}");
    }
}

/// A world in which all switches but one can encrypt.
fn world_where_one_cannot_encrypt(fabric: Fabric, which: &str) -> World {
    let mut world = World::new(fabric, Settings::default());
    world.aes = true;
    world.all_up();
    world.down(which);
    world.aes = false;
    world.up(which, &[]).unwrap();
    world
}

fn encrypted_job(world: &mut World, protocol: &str, hosts: &[usize]) -> u32 {
    let job = world.create_as(pb::CreateJobRequest {
        size: hosts.len() as u32,
        min_bytes: Some(0),
        protocol: protocol.to_owned(),
        encrypt: true,
        ..Default::default()
    });
    for (rank, host) in hosts.iter().enumerate() {
        world.join(job, rank as u32, &format!("h{host}"), 0).unwrap();
    }
    job
}

fn macs(world: &World) -> Vec<Mac> {
    let leases = world.granted.iter();
    let keys = leases.flat_map(|(_, lease)| lease.secrets().unwrap().unwrap());
    keys.map(|keys| keys.up.mac()).collect()
}

#[test]
fn an_encrypted_job_uses_only_switches_that_can_encrypt() {
    for protocol in ["panama", "atp", "switchml"] {
        let mut world = world_where_one_cannot_encrypt(fabric(), "spine0");
        let job = encrypted_job(&mut world, protocol, &[0, 1, 2, 3]);
        assert!(!world.roots(job).is_empty(), "{protocol}: {}", world.plan(job).reason);
        assert!(world.granted.iter().all(|(switch, _)| switch != "spine0"), "{protocol}");
        if protocol == "panama" {
            assert_eq!(world.plan(job).reason, "1 of 2 trees: spine0 cannot encrypt");
        }
        // Also under its next key, and after a restart of the controller.
        world.play(Event::RekeyJob { job, key: KEY }).unwrap();
        world.wait(1_000);
        assert!(macs(&world).iter().all(|mac| *mac == Mac::AegisAead), "{protocol}");
        assert!(world.state().job(job).unwrap().spec.encrypt);
        let mut world = world_where_one_cannot_encrypt(fabric(), "rack0");
        let job = encrypted_job(&mut world, protocol, &[0, 1]);
        let plan = world.plan(job);
        // With atp the servers add alone, and switchml's pool moves to a spine.
        let roots: Vec<&str> = plan.trees.iter().map(|tree| tree.root.as_str()).collect();
        let moved = if protocol == "panama" { roots.is_empty() } else { roots != ["rack0"] };
        let told = plan.reason.contains("rack0 cannot encrypt");
        assert!(told && moved, "{protocol}: {roots:?}, {:?}", plan.reason);
        assert!(world.granted.iter().all(|(switch, _)| switch != "rack0"), "{protocol}");
    }
}

#[test]
fn a_plan_without_trees_has_another_epoch_under_another_key() {
    let mut world = World::new(fabric(), Settings::default());
    let job = world.job_of("panama", "");
    // The job waits for switches, in vain.
    world.wait(60_000);
    let before = world.plan(job).clone();
    assert!(before.trees.is_empty(), "no switch is up: {}", before.reason);
    let key = JobKey::new(KEY.mac(), [9; 16]);
    world.play(Event::RekeyJob { job, key }).unwrap();
    world.wait(1_000);
    let after = world.plan(job);
    assert!(after.trees.is_empty() && after.key_id != before.key_id);
    assert!(after.epoch > before.epoch, "{} and {}", before.epoch, after.epoch);
}

#[test]
fn a_tenant_may_demand_encryption_and_a_trusted_fabric_cannot_have_it() {
    let mut fabric = fabric();
    fabric.tenants[0].encrypt = true;
    let mut world = world_where_one_cannot_encrypt(fabric.clone(), "spine0");
    world.job_of("panama", "gold");
    assert!(macs(&world).iter().all(|mac| *mac == Mac::AegisAead));
    fabric.trusted = true;
    let mut world = World::new(fabric, Settings::default());
    let request = pb::CreateJobRequest { size: 2, encrypt: true, ..Default::default() };
    let event = Event::CreateJob { request, key: KEY, from: None };
    let refusal = world.play(event).unwrap_err().to_string();
    assert!(refusal.contains("is trusted: its packets have no keys"), "{refusal}");
}

#[test]
fn traffic_between_racks_counts_on_every_spine() {
    let mut world = world(fabric());
    world.job_of("atp", "");
    let address = |name: &str| world.fabric.switch(name).unwrap().address.to_string();
    let beats = [("rack0", address("rack1"), 60), ("rack1", address("rack0"), 100)];
    for (switch, address, tx_bytes) in beats {
        let session = world.switches[switch].0;
        let neighbours = vec![pb::Neighbour { address, tx_bytes, ..pb::Neighbour::default() }];
        let counters = pb::SwitchHeartbeat { neighbours, ..pb::SwitchHeartbeat::default() };
        world.play(Event::SwitchHeartbeat { session, counters }).unwrap();
    }
    let links = world.state().status(0).links;
    let of = |a: &str, b: &str| {
        let link = links.iter().find(|link| (link.a.as_str(), link.b.as_str()) == (a, b)).unwrap();
        (link.bytes_ab, link.bytes_ba)
    };
    for spine in ["spine0", "spine1"] {
        assert_eq!((of("rack0", spine), of("rack1", spine)), ((30, 50), (50, 30)));
    }
}

#[test]
fn dead_members_are_left_out_and_return() {
    let mut world = world(fabric());
    let job = world.job_of("atp", "");
    world.down("ps0");
    assert_eq!((world.roots(job), world.plan(job).epoch), (vec!["ps1"], 2));
    assert_eq!(world.plan(job).reason, "1 of 2 servers: ps0 is down");
    world.down("rack0");
    let (middle, left) = racks(world.plan(job), 0);
    let alone = [rack(None, &[0]), rack(None, &[1]), rack(None, &[2]), rack(None, &[3])];
    assert_eq!((middle.as_deref(), &left[..]), (Some("rack1"), &alone[..]));
    world.down("rack1");
    let (middle, left) = racks(world.plan(job), 0);
    assert_eq!((middle, left.len()), (None, 4), "to the server alone");
    checked(world.plan(job), 4).unwrap();
    world.down("ps1");
    assert_eq!((world.plan(job).trees.len(), world.plan(job).epoch), (0, 5));
    assert!(world.plan(job).reason.starts_with("0 of 2 servers: "), "{}", world.plan(job).reason);
    for name in ["rack0", "rack1", "ps0", "ps1"] {
        world.up(name, &[]).unwrap();
    }
    world.wait(2_000);
    assert_eq!((world.roots(job), world.plan(job).reason.as_str()), (vec!["ps0", "ps1"], ""));
    assert_eq!(racks(world.plan(job), 0).0.as_deref(), Some("rack0"));
    world.check_leases();
    // The spines only forward, and that is not the daemon's work.
    let epoch = world.plan(job).epoch;
    world.down("spine0");
    assert_eq!(world.plan(job).epoch, epoch);
}

#[test]
fn a_job_with_one_tree_comes_back_to_the_nearest_server() {
    let mut world = world(fabric());
    let (protocol, min_bytes) = ("atp".to_owned(), Some(0));
    let job = world.create_as(pb::CreateJobRequest {
        size: 4,
        max_trees: 1,
        min_bytes,
        protocol,
        ..Default::default()
    });
    (0..4).for_each(|rank| _ = world.join(job, rank, &format!("h{rank}"), 0).unwrap());
    assert_eq!(world.roots(job), ["ps0"]);
    world.down("ps0");
    assert_eq!(world.roots(job), ["ps1"]);
    assert_eq!(world.plan(job).reason, "1 of 1 servers: ps0 is down");
    world.up("ps0", &[]).unwrap();
    world.wait(1_000);
    assert_eq!((world.roots(job), world.plan(job).reason.as_str()), (vec!["ps0"], ""));
    world.check_leases();
}

#[test]
fn a_job_without_any_working_tree_continues_over_the_hosts() {
    for protocol in ["switchml", "atp", "panama"] {
        let mut world = world(fabric());
        let job = world.job_of(protocol, "");
        let trees = world.plan(job).trees.len();
        world.wait(1_000);
        // No tree can do without this host.
        world.broken.insert("h0".to_owned());
        world.wait(3 * (NOTICE_MS + 300));
        assert_eq!(world.plan(job).trees.len(), 0, "{protocol}: {}", world.plan(job).reason);
        world.broken.clear();
        world.wait(2_000);
        assert_eq!((world.plan(job).trees.len(), world.plan(job).reason.as_str()), (trees, ""));
        world.check_leases();
    }
}

#[test]
fn roles_and_tenants_are_checked() {
    let mut world = world(fabric());
    let create = |world: &mut World, change: &dyn Fn(&mut pb::CreateJobRequest)| {
        let mut request = pb::CreateJobRequest { size: 2, ..Default::default() };
        change(&mut request);
        world
            .play(Event::CreateJob { request, key: KEY, from: None })
            .map_err(|refusal| refusal.to_string())
    };
    let error = create(&mut world, &|r| r.tenant = "nobody".to_owned()).unwrap_err();
    assert!(error.contains("has no tenant \"nobody\"; it has gold, default"), "{error}");
    let error = create(&mut world, &|r| r.protocol = "tcp".to_owned()).unwrap_err();
    assert!(error.contains("use panama, atp or switchml, or auto"), "{error}");
    let error = create(&mut world, &|r| r.scale = -1.0).unwrap_err();
    assert!(error.contains("scale -1 is no factor"), "{error}");
    let partial = |r: &mut pb::CreateJobRequest| {
        (r.protocol, r.release_fraction) = ("atp".to_owned(), 0.5);
    };
    assert!(create(&mut world, &partial).unwrap_err().contains("is for protocol panama"));
    create(&mut world, &|r| r.tenant = "gold".to_owned()).unwrap();
    let error = create(&mut world, &|r| r.tenant = "gold".to_owned()).unwrap_err();
    assert!(error.contains("tenant \"gold\" has 1 jobs, the most that it may have"), "{error}");
    let session = world.session();
    let address = world.fabric.servers[0].address.to_string();
    let hello = pb::SwitchHello {
        name: "ps0".to_owned(),
        udp_address: address,
        server: false,
        ..Default::default()
    };
    let error = world.play(Event::SwitchHello { session, hello }).unwrap_err().to_string();
    assert!(error.contains("has no switch \"ps0\""), "{error}");
}

#[test]
fn a_partition_is_addressed_by_its_own_slots() {
    let mut partitioned = fabric();
    partitioned.switches.iter_mut().for_each(|switch| switch.policy = SlotPolicy::Partition);
    let mut world = world(partitioned);
    let job = world.job_of("atp", "gold");
    assert_eq!(world.plan(job).slot_space, 50);
}

#[test]
fn a_pool_stands_at_the_switch_nearest_to_all() {
    let mut world = world(fabric());
    let job = world.job_of("switchml", "");
    let plan = world.plan(job).clone();
    assert_eq!(
        (plan.protocol.as_str(), plan.reason.as_str(), plan.trees.len()),
        ("switchml", "", 1)
    );
    // Two hosts are one link away from a rack's switch and two are three: as far as from a spine.
    assert_eq!((plan.trees[0].root.as_str(), plan.window_max), ("rack0", 512));
    checked(&plan, 4).unwrap();
    let gold = world.job_of("switchml", "gold");
    assert_eq!(world.plan(gold).window_max, 100, "what the tenant is guaranteed");
    assert_eq!(world.roots(gold), ["rack1"], "where nobody is yet");
    world.check_leases();
    world.down("rack0");
    assert_ne!(world.roots(job), ["rack0"]);
}

#[test]
fn a_pool_comes_back_to_the_nearest_switch() {
    let mut world = world(fabric());
    let request =
        pb::CreateJobRequest { size: 2, protocol: "switchml".to_owned(), ..Default::default() };
    let job = world.create_as(request);
    for rank in 0..2 {
        world.join(job, rank, &format!("h{rank}"), 0).unwrap();
    }
    assert_eq!(world.roots(job), ["rack0"]);
    world.down("rack0");
    assert_ne!(world.roots(job), ["rack0"]);
    world.up("rack0", &[]).unwrap();
    world.wait(2_000);
    assert_eq!((world.roots(job), world.plan(job).reason.as_str()), (vec!["rack0"], ""));
    world.check_leases();
}

#[test]
fn a_late_rank_is_no_dead_switch_of_a_pool() {
    let mut world = world(fabric());
    let job = world.job_of("switchml", "");
    let plan_epoch = world.plan(job).epoch;
    let silent_at = |world: &mut World, ranks: std::ops::Range<u32>| {
        for rank in ranks {
            let session = world.workers[&(job, rank)].0;
            let statistics =
                pb::WorkerHeartbeat { plan_epoch, silent_trees: vec![0], ..Default::default() };
            world.play(Event::WorkerHeartbeat { session, statistics }).unwrap();
        }
        for _ in 0..3 {
            world.now_ms += 100;
            world.play(Event::Tick).unwrap();
        }
    };
    silent_at(&mut world, 0..3);
    assert_eq!(world.plan(job).epoch, plan_epoch, "rank 3 is late");
    silent_at(&mut world, 0..4);
    assert_ne!(world.plan(job).epoch, plan_epoch, "nobody is answered");
}

#[test]
fn auto_reports_its_choice_and_the_reason() {
    let mut plain = fabric();
    plain.servers.clear();
    let mut without = world(plain);
    let job = without.job_of("auto", "");
    let plan = without.plan(job);
    assert_eq!((plan.protocol.as_str(), plan.trees.len()), ("panama", 2));
    assert_eq!(plan.choice, "the fabric has no server, which atp needs");
    let mut world = world(fabric());
    let job = world.job_of("auto", "");
    assert_eq!(world.plan(job).protocol, "panama");
    assert!(world.plan(job).choice.contains("memory for 2 trees"), "{}", world.plan(job).choice);
    let mut scarce = World::new(fabric(), Settings::default());
    scarce.memory = 100 << 10;
    scarce.all_up();
    let job = scarce.job_of("auto", "");
    assert_eq!((scarce.plan(job).protocol.as_str(), scarce.plan(job).trees.len()), ("atp", 2));
    assert!(scarce.plan(job).choice.contains("memory is scarce"), "{}", scarce.plan(job).choice);
    // Without servers even a small window is better than none.
    scarce.down("ps0");
    scarce.down("ps1");
    assert_eq!(scarce.plan(job).protocol, "panama");
    assert!(scarce.plan(job).choice.starts_with("atp cannot be had: 0 of 2 servers"));
}

#[test]
fn trees_are_planned_beside_jobs_with_slots() {
    for others in [&["atp"][..], &["switchml"], &["atp", "switchml", "panama"]] {
        let mut world = world(fabric());
        let jobs: Vec<u32> = others.iter().map(|protocol| world.job_of(protocol, "")).collect();
        let job = world.job_of("panama", "");
        for job in jobs.into_iter().chain([job]) {
            assert_eq!(world.plan(job).reason, "", "beside {others:?}");
        }
        assert_eq!(world.roots(job).len(), 2, "beside {others:?}");
        world.check_leases();
    }
}

/// An atp job whose racks' traffic goes over all spines leaves them alike; a panama job on a tree of its own leaves the other.
#[test]
fn trees_keep_to_links_where_other_jobs_send_less() {
    let mut fabric = fabric();
    fabric.servers.truncate(1);
    let mut world = world(fabric);
    world.job_of("atp", "");
    let first = world.job_on(&[0, 1, 2, 3], 1);
    let second = world.job_on(&[0, 1, 2, 3], 1);
    assert_ne!(world.roots(first), world.roots(second));
}
