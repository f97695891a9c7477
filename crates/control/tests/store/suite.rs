//! The suite. Each test begins with an empty store.

use netsum_control::{Change, ControlError, JobRow, MemberRow, Saved, Store, backup, restore};

use crate::Places;

/// Runs all tests at one kind of store.
pub fn run(places: &dyn Places) {
    let tests: [fn(&dyn Places); 10] = [
        a_new_store_has_numbers_of_its_own,
        what_is_saved_is_loaded,
        of_several_changes_the_last_counts,
        a_new_job_has_nothing_of_an_old_one_with_its_number,
        terms_increase_and_last,
        an_earlier_term_changes_nothing,
        large_changes_are_made_as_a_whole,
        only_the_latest_ended_jobs_are_loaded,
        many_ranks_are_loaded,
        a_backup_is_restored,
    ];
    for test in tests {
        places.new_place();
        test(places);
    }
}

/// A store in a term of its own.
pub fn begun(places: &dyn Places) -> Box<dyn Store> {
    let mut store = places.open();
    store.begin_term().unwrap();
    store.load().unwrap();
    store
}

/// What a controller that starts now finds.
pub fn reloaded(places: &dyn Places) -> Saved {
    let mut store = places.open();
    store.begin_term().unwrap();
    store.load().unwrap()
}

pub fn job(number: u32) -> JobRow {
    JobRow {
        job: number,
        name: format!("job {number}"),
        size: 2,
        max_trees: 16,
        release_fraction: 0.5,
        congestion: "per-branch".to_owned(),
        min_bytes: 1 << 40,
        created_unix_s: 1e9 + f64::from(number),
        phase: "running".to_owned(),
        epoch: u16::MAX,
        sum_order: Some("[0,1]".to_owned()),
        fragment_bytes: Some(1408),
        protocol: "panama".to_owned(),
        tenant: "research".to_owned(),
        scale: 1e8,
        request: u64::MAX,
        all_collectives: true,
        key: Some(vec![0, 255, 7]),
        plan: Some(vec![0; 5]),
    }
}

pub fn member(job: u32, rank: u32) -> MemberRow {
    MemberRow {
        job,
        rank,
        state: "present".to_owned(),
        host: Some("h0".to_owned()),
        udp_address: Some(format!("10.0.0.1:{rank}")),
        mesh_address: "[::1]:9".to_owned(),
        pid: u32::MAX,
        mtu: 9000,
    }
}

fn ended(number: u32) -> JobRow {
    JobRow { phase: "ended".to_owned(), ..job(number) }
}

fn a_new_store_has_numbers_of_its_own(places: &dyn Places) {
    let first = reloaded(places);
    assert_ne!((first.incarnation, first.next_job), (0, 0));
    assert_eq!(first.next_job % 1000, 1, "a store begins at a thousand of its own");
    let rows =
        Saved { incarnation: first.incarnation, next_job: first.next_job, ..Saved::default() };
    assert_eq!(reloaded(places), rows, "opened again it is the same store");
    places.new_place();
    assert_ne!(reloaded(places).incarnation, first.incarnation);
}

fn what_is_saved_is_loaded(places: &dyn Places) {
    let mut store = begun(places);
    let bare = JobRow {
        sum_order: None,
        fragment_bytes: None,
        key: None,
        plan: None,
        release_fraction: 1.0,
        phase: "joining".to_owned(),
        ..job(9)
    };
    let absent = MemberRow { host: None, udp_address: None, ..member(9, 1) };
    store
        .save(&[Change::NextJob(10), Change::NewJob(job(8)), Change::NewJob(bare.clone())])
        .unwrap();
    store.save(&[Change::Member(member(8, 0)), Change::Member(absent.clone())]).unwrap();
    store.confirm().unwrap();
    let before = store.load().unwrap();
    drop(store);
    let saved = reloaded(places);
    assert_eq!(saved, before);
    assert_eq!((saved.next_job, saved.jobs), (10, vec![job(8), bare]));
    assert_eq!(saved.members, [member(8, 0), absent]);
}

fn of_several_changes_the_last_counts(places: &dyn Places) {
    let mut store = begun(places);
    let renamed = JobRow { name: "renamed".to_owned(), plan: None, ..job(1) };
    let left = MemberRow { state: "left".to_owned(), ..member(1, 0) };
    let changes = [
        Change::NewJob(job(1)),
        Change::Member(member(1, 0)),
        Change::Job(renamed.clone()),
        Change::Member(left.clone()),
        Change::NextJob(2),
        Change::NextJob(3),
    ];
    store.save(&changes).unwrap();
    let saved = store.load().unwrap();
    assert_eq!((saved.next_job, saved.jobs, saved.members), (3, vec![renamed], vec![left]));
}

fn a_new_job_has_nothing_of_an_old_one_with_its_number(places: &dyn Places) {
    let mut store = begun(places);
    store.save(&[Change::NewJob(ended(4)), Change::Member(member(4, 1))]).unwrap();
    store.save(&[Change::NewJob(ended(40)), Change::Member(member(40, 0))]).unwrap();
    store.save(&[Change::NewJob(job(4)), Change::Member(member(4, 0))]).unwrap();
    let saved = store.load().unwrap();
    assert_eq!(saved.jobs, [job(4), ended(40)]);
    assert_eq!(saved.members, [member(4, 0), member(40, 0)]);
    // Also for a controller that has only loaded the old one.
    drop(store);
    let mut store = begun(places);
    store.save(&[Change::NewJob(job(4))]).unwrap();
    assert_eq!(store.load().unwrap().members, [member(40, 0)]);
}

fn terms_increase_and_last(places: &dyn Places) {
    let mut last = 0;
    for _ in 0..3 {
        let mut store = places.open();
        for _ in 0..2 {
            let term = store.begin_term().unwrap();
            assert!(term > last, "term {term} after {last}");
            last = term;
        }
        store.save(&[Change::NextJob(5)]).unwrap();
        store.confirm().unwrap();
    }
}

fn an_earlier_term_changes_nothing(places: &dyn Places) {
    if !places.is_shared() {
        return;
    }
    let mut old = begun(places);
    old.save(&[Change::NewJob(job(1))]).unwrap();
    let mut new = places.open();
    let term = new.begin_term().unwrap();
    let is_deposed = |error: &ControlError| matches!(error, ControlError::Deposed { term: by, .. } if *by == term);
    // The new one has not even loaded yet.
    let error = old.save(&[Change::NextJob(99), Change::NewJob(job(2))]).unwrap_err();
    assert!(is_deposed(&error), "{error}");
    let error = old.confirm().unwrap_err();
    assert!(is_deposed(&error), "{error}");
    let saved = new.load().unwrap();
    assert_eq!(saved.jobs, [job(1)]);
    assert_ne!(saved.next_job, 99);
    new.save(&[Change::NextJob(98)]).unwrap();
    assert!(old.save(&[Change::NextJob(99)]).is_err(), "it stays deposed");
    assert_eq!(new.load().unwrap().next_job, 98);
}

fn large_changes_are_made_as_a_whole(places: &dyn Places) {
    let mut store = begun(places);
    let with_plan = |number| JobRow { plan: Some(vec![number as u8; 400_000]), ..job(number) };
    let mut changes: Vec<Change> =
        (1..=6).map(|number| Change::NewJob(with_plan(number))).collect();
    changes.extend((0..300).map(|rank| Change::Member(member(1, rank))));
    changes.push(Change::NextJob(7));
    store.save(&changes).unwrap();
    store.save(&[Change::NextJob(8)]).unwrap();
    drop(store);
    let saved = reloaded(places);
    assert_eq!((saved.next_job, saved.members.len()), (8, 300));
    assert_eq!(saved.jobs, (1..=6).map(with_plan).collect::<Vec<_>>());
}

fn only_the_latest_ended_jobs_are_loaded(places: &dyn Places) {
    let mut store = begun(places);
    store.save(&[Change::NewJob(job(1))]).unwrap();
    for number in 2..=130 {
        store.save(&[Change::NewJob(ended(number)), Change::Member(member(number, 0))]).unwrap();
    }
    drop(store);
    let saved = reloaded(places);
    let jobs: Vec<u32> = saved.jobs.iter().map(|job| job.job).collect();
    let latest = std::iter::once(1).chain(31..=130).collect::<Vec<u32>>();
    assert_eq!(jobs, latest, "live jobs stay, of the others the latest hundred");
    assert!(saved.members.iter().all(|member| latest.contains(&member.job)));
}

fn many_ranks_are_loaded(places: &dyn Places) {
    let mut store = begun(places);
    let large = JobRow { size: 1300, ..job(1) };
    store.save(&[Change::NewJob(large)]).unwrap();
    let members: Vec<Change> = (0..1300).map(|rank| Change::Member(member(1, rank))).collect();
    store.save(&members).unwrap();
    drop(store);
    let ranks: Vec<u32> = reloaded(places).members.iter().map(|member| member.rank).collect();
    assert_eq!(ranks, (0..1300).collect::<Vec<u32>>());
}

fn a_backup_is_restored(places: &dyn Places) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("backup");
    let mut store = begun(places);
    let changes = [Change::NextJob(50), Change::NewJob(job(7)), Change::NewJob(ended(8))];
    store.save(&changes).unwrap();
    store.save(&[Change::Member(member(7, 0)), Change::Member(member(7, 1))]).unwrap();
    let before = store.load().unwrap();
    drop(store);
    // A reader without a term of its own: the leader goes on.
    let copied = backup(places.open().as_mut(), "lab", &file).unwrap();
    assert_eq!((copied.jobs, copied.ranks), (2, 2));
    let mode = std::os::unix::fs::PermissionsExt::mode(&file.metadata().unwrap().permissions());
    assert_eq!(mode & 0o077, 0, "others may read the keys: {mode:o}");
    let into = |file: &std::path::Path, fabric: &str| {
        restore(places.open().as_mut(), fabric, file).map_err(|error| error.to_string())
    };
    let refused = into(&file, "lab").unwrap_err();
    assert!(refused.contains("has 2 jobs, which the backup would replace"), "{refused}");
    places.new_place();
    let refused = into(&file, "other").unwrap_err();
    assert!(refused.contains("a backup of fabric \"lab\", not of \"other\""), "{refused}");
    let bytes = std::fs::read(&file).unwrap();
    for (what, damaged) in [
        ("is damaged", &bytes[..bytes.len() - 1]),
        ("is damaged", &[&bytes[..40], &[bytes[40] ^ 1], &bytes[41..]].concat()),
        ("is no backup", &bytes[1..]),
        ("is no backup", &[]),
    ] {
        let other = folder.path().join("damaged");
        std::fs::write(&other, damaged).unwrap();
        let refused = into(&other, "lab").unwrap_err();
        assert!(refused.contains(what), "{refused}");
    }
    into(&file, "lab").unwrap();
    let after = reloaded(places);
    assert_eq!(
        (after.incarnation, &after.jobs, &after.members),
        (before.incarnation, &before.jobs, &before.members)
    );
    assert_eq!(after.next_job, 10_050, "numbers given since the backup are not given again");
    let exists = backup(places.open().as_mut(), "lab", &file).unwrap_err().to_string();
    assert!(exists.contains("cannot be written"), "{exists}");
}
