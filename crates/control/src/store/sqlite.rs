//! The store in one SQLite file.

use std::fs::{OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OptionalExtension, Row, Transaction, params};

use super::contract::{
    Change, ENDED_KEPT, ENDED_LOADED, JobRow, MemberRow, Saved, Store, draw_incarnation, first_job,
    next_term,
};
use crate::error::ControlError;

/// A store in a file.
#[derive(Debug)]
pub struct SqliteStore {
    connection: Connection,
    file: PathBuf,
    /// The term of this process, which holds the file.
    term: u64,
}

impl SqliteStore {
    /// Opens or creates the file. Errors name the file and the remedy; a file that another controller has open is
    /// refused.
    pub fn open(file: &Path) -> Result<SqliteStore, ControlError> {
        let fail = |error| failure(file, error);
        make_private(file)?;
        let connection = Connection::open(file).map_err(fail)?;
        SqliteStore::prepare(connection, file.to_owned())
    }

    fn prepare(mut connection: Connection, file: PathBuf) -> Result<SqliteStore, ControlError> {
        let fail = |error| failure(&file, error);
        connection.busy_timeout(BUSY_TIMEOUT).map_err(fail)?;
        // One controller per file: the lock is taken at the first access and held.
        connection.pragma_update(None, "locking_mode", "EXCLUSIVE").map_err(fail)?;
        connection.pragma_update(None, "journal_mode", "WAL").map_err(fail)?;
        // A commit lost in a power failure would let a number be given twice, so each commit is synced to disk.
        connection.pragma_update(None, "synchronous", "FULL").map_err(fail)?;
        let version: u32 =
            connection.query_row("PRAGMA user_version", [], |row| row.get(0)).map_err(fail)?;
        if version > SCHEMA_VERSION {
            let problem = format!(
                "its layout has version {version}, this controller knows {SCHEMA_VERSION}; use a newer controller or another file"
            );
            return Err(ControlError::Store { file: file.clone(), problem });
        }
        let transaction = connection.transaction().map_err(fail)?;
        transaction.execute_batch(SCHEMA).map_err(fail)?;
        if version == 1 {
            transaction.execute_batch(FROM_1).map_err(fail)?;
        }
        if version == 1 || version == 2 {
            transaction.execute_batch(FROM_2).map_err(fail)?;
        }
        if (1..=3).contains(&version) {
            transaction.execute_batch(FROM_3).map_err(fail)?;
        }
        if (1..=4).contains(&version) {
            transaction.execute_batch(FROM_4).map_err(fail)?;
        }
        if (1..=5).contains(&version) {
            transaction.execute_batch(FROM_5).map_err(fail)?;
        }
        if meta(&transaction, INCARNATION).map_err(fail)?.is_none() {
            let incarnation = draw_incarnation()?;
            set_meta(&transaction, INCARNATION, incarnation as i64).map_err(fail)?;
            if meta(&transaction, NEXT_JOB).map_err(fail)?.is_none() {
                let first = i64::from(first_job(incarnation));
                set_meta(&transaction, NEXT_JOB, first).map_err(fail)?;
            }
        }
        let term = meta(&transaction, TERM).map_err(fail)?.unwrap_or_default() as u64;
        transaction.pragma_update(None, "user_version", SCHEMA_VERSION).map_err(fail)?;
        transaction.commit().map_err(fail)?;
        Ok(SqliteStore { connection, file, term })
    }

    fn read(&mut self) -> rusqlite::Result<Saved> {
        let transaction = self.connection.transaction()?;
        let incarnation = meta(&transaction, INCARNATION)?.unwrap_or_default() as u64;
        let next_job = meta(&transaction, NEXT_JOB)?.unwrap_or_default() as u32;
        let mut jobs = Vec::new();
        let mut members = Vec::new();
        let live = "phase NOT IN ('ended', 'abandoned')";
        let latest = "SELECT job FROM jobs WHERE phase IN ('ended', 'abandoned')
                      ORDER BY created_unix_s DESC, job DESC LIMIT ?1";
        let wanted = format!("job IN (SELECT job FROM jobs WHERE {live}) OR job IN ({latest})");
        {
            let query = format!(
                "SELECT *, (SELECT body FROM plans WHERE plans.job = jobs.job) AS body FROM jobs
                 WHERE {wanted} ORDER BY job"
            );
            let mut statement = transaction.prepare(&query)?;
            let mut rows = statement.query([ENDED_LOADED])?;
            while let Some(row) = rows.next()? {
                jobs.push(job_from(row)?);
            }
            let query = format!("SELECT * FROM members WHERE {wanted} ORDER BY job, rank");
            let mut statement = transaction.prepare(&query)?;
            let mut rows = statement.query([ENDED_LOADED])?;
            while let Some(row) = rows.next()? {
                members.push(member_from(row)?);
            }
        }
        Ok(Saved { incarnation, next_job, jobs, members })
    }

    fn write_term(&mut self, term: u64) -> rusqlite::Result<()> {
        let transaction = self.connection.transaction()?;
        set_meta(&transaction, TERM, term as i64)?;
        transaction.commit()
    }

    fn write(&mut self, changes: &[Change]) -> rusqlite::Result<()> {
        let transaction = self.connection.transaction()?;
        for change in changes {
            match change {
                Change::Incarnation(incarnation) => {
                    set_meta(&transaction, INCARNATION, *incarnation as i64)?
                }
                Change::NextJob(next_job) => {
                    set_meta(&transaction, NEXT_JOB, i64::from(*next_job))?
                }
                Change::NewJob(job) => {
                    transaction.execute("DELETE FROM members WHERE job = ?1", [job.job])?;
                    write_job(&transaction, job)?;
                }
                Change::Job(job) => write_job(&transaction, job)?,
                Change::Member(member) => write_member(&transaction, member)?,
            }
        }
        transaction.commit()
    }
}

impl Store for SqliteStore {
    fn begin_term(&mut self) -> Result<u64, ControlError> {
        let term = next_term(self.term);
        self.write_term(term).map_err(|error| failure(&self.file, error))?;
        self.term = term;
        Ok(term)
    }

    fn confirm(&mut self) -> Result<(), ControlError> {
        // This process holds the file: nobody else can begin a term.
        Ok(())
    }

    fn load(&mut self) -> Result<Saved, ControlError> {
        self.read().map_err(|error| failure(&self.file, error))
    }

    fn save(&mut self, changes: &[Change]) -> Result<(), ControlError> {
        self.write(changes).map_err(|error| failure(&self.file, error))
    }

    fn place(&self) -> String {
        self.file.display().to_string()
    }
}

fn meta(transaction: &Transaction, key: &str) -> rusqlite::Result<Option<i64>> {
    let query = "SELECT value FROM meta WHERE key = ?1";
    transaction.query_row(query, [key], |row| row.get(0)).optional()
}

fn set_meta(transaction: &Transaction, key: &str, value: i64) -> rusqlite::Result<()> {
    let statement = "INSERT OR REPLACE INTO meta (key, value) VALUES (?1, ?2)";
    transaction.prepare_cached(statement)?.execute(params![key, value]).map(drop)
}

fn write_job(transaction: &Transaction, job: &JobRow) -> rusqlite::Result<()> {
    transaction
        .prepare_cached(
            "INSERT OR REPLACE INTO jobs (job, name, size, max_trees, release_fraction, congestion, min_bytes,
               created_unix_s, phase, epoch, sum_order, fragment_bytes, protocol, tenant, scale, key,
               request, all_collectives)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18)",
        )?
        .execute(params![
            job.job,
            job.name,
            job.size,
            job.max_trees,
            job.release_fraction,
            job.congestion,
            // SQLite's integers are signed; more than 2⁶³ bytes and "never" are equivalent.
            i64::try_from(job.min_bytes).unwrap_or(i64::MAX),
            job.created_unix_s,
            job.phase,
            job.epoch,
            job.sum_order,
            job.fragment_bytes,
            job.protocol,
            job.tenant,
            job.scale,
            job.key,
            job.request.cast_signed(),
            job.all_collectives,
        ])?;
    transaction.prepare_cached("DELETE FROM plans WHERE job = ?1")?.execute([job.job])?;
    if let Some(body) = &job.plan {
        transaction
            .prepare_cached("INSERT INTO plans (job, epoch, body) VALUES (?1, ?2, ?3)")?
            .execute(params![job.job, job.epoch, body])?;
    }
    if job.phase == "ended" || job.phase == "abandoned" {
        prune(transaction)?;
    }
    Ok(())
}

fn write_member(transaction: &Transaction, member: &MemberRow) -> rusqlite::Result<()> {
    transaction
        .prepare_cached(
            "INSERT OR REPLACE INTO members (job, rank, state, host, udp_address, mesh_address, pid, mtu)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
        )?
        .execute(params![
            member.job,
            member.rank,
            member.state,
            member.host,
            member.udp_address,
            member.mesh_address,
            member.pid,
            member.mtu,
        ])
        .map(drop)
}

/// Deletes all but the latest ended jobs.
fn prune(transaction: &Transaction) -> rusqlite::Result<()> {
    let old = "SELECT job FROM jobs WHERE phase IN ('ended', 'abandoned')
               ORDER BY created_unix_s DESC, job DESC LIMIT -1 OFFSET ?1";
    for table in ["plans", "members", "jobs"] {
        transaction.execute(&format!("DELETE FROM {table} WHERE job IN ({old})"), [ENDED_KEPT])?;
    }
    Ok(())
}

fn job_from(row: &Row) -> rusqlite::Result<JobRow> {
    Ok(JobRow {
        job: row.get("job")?,
        name: row.get("name")?,
        size: row.get("size")?,
        max_trees: row.get("max_trees")?,
        release_fraction: row.get("release_fraction")?,
        congestion: row.get("congestion")?,
        min_bytes: row.get::<_, i64>("min_bytes")?.unsigned_abs(),
        created_unix_s: row.get("created_unix_s")?,
        phase: row.get("phase")?,
        epoch: row.get("epoch")?,
        sum_order: row.get("sum_order")?,
        fragment_bytes: row.get("fragment_bytes")?,
        protocol: row.get("protocol")?,
        tenant: row.get("tenant")?,
        scale: row.get("scale")?,
        request: row.get::<_, i64>("request")?.cast_unsigned(),
        all_collectives: row.get("all_collectives")?,
        key: row.get("key")?,
        plan: row.get("body")?,
    })
}

fn member_from(row: &Row) -> rusqlite::Result<MemberRow> {
    Ok(MemberRow {
        job: row.get("job")?,
        rank: row.get("rank")?,
        state: row.get("state")?,
        host: row.get("host")?,
        udp_address: row.get("udp_address")?,
        mesh_address: row.get("mesh_address")?,
        pid: row.get("pid")?,
        mtu: row.get("mtu")?,
    })
}

/// Creates the file, or takes an existing one from the sight of others: it contains the jobs' keys. Errors: the file is
/// another user's. SQLite has the better message if it cannot be opened.
fn make_private(file: &Path) -> Result<(), ControlError> {
    let options =
        OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(file);
    let Ok(opened) = options else { return Ok(()) };
    let unchanged = |error: io::Error| ControlError::Store {
        file: file.to_owned(),
        problem: format!("others may read the jobs' keys in it: {error}; choose another file"),
    };
    let metadata = opened.metadata().map_err(unchanged)?;
    if metadata.permissions().mode() & 0o077 == 0 {
        return Ok(());
    }
    // Fails for another user's file.
    opened.set_permissions(Permissions::from_mode(0o600)).map_err(unchanged)
}

fn failure(file: &Path, error: rusqlite::Error) -> ControlError {
    let problem = match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            "another process holds it; stop that controller, or give another file with --store"
                .to_owned()
        }
        Some(ErrorCode::NotADatabase) => {
            "it is not a SQLite file; give another with --store".to_owned()
        }
        Some(ErrorCode::DiskFull) => {
            "its disk is full; make space, or start the controller with a store on another disk"
                .to_owned()
        }
        Some(ErrorCode::CannotOpen) => {
            "it cannot be opened; does its folder exist, and may you write there?".to_owned()
        }
        _ => error.to_string(),
    };
    ControlError::Store { file: file.to_owned(), problem }
}

const INCARNATION: &str = "incarnation";
const TERM: &str = "term";
const NEXT_JOB: &str = "next_job";
const SCHEMA_VERSION: u32 = 6;
/// Migration from the first layout, in which every job used `panama`.
const FROM_1: &str = "
ALTER TABLE jobs ADD COLUMN protocol TEXT NOT NULL DEFAULT 'panama';
ALTER TABLE jobs ADD COLUMN tenant TEXT NOT NULL DEFAULT 'default';
ALTER TABLE jobs ADD COLUMN scale REAL NOT NULL DEFAULT 0;
";
/// Migration from the second layout, in which no packet had a tag; its jobs continue without.
const FROM_2: &str = "ALTER TABLE jobs ADD COLUMN key BLOB;";
/// Migration from the third layout, whose numbers followed the highest, and which had plans of old epochs.
const FROM_3: &str = "
INSERT INTO meta SELECT 'next_job', COALESCE(MAX(job), 0) + 1 FROM jobs;
DELETE FROM plans WHERE (job, epoch) NOT IN (SELECT job, MAX(epoch) FROM plans GROUP BY job);
";
/// Migration from the fourth layout, in which requests had no numbers.
const FROM_4: &str = "ALTER TABLE jobs ADD COLUMN request INTEGER NOT NULL DEFAULT 0;";
/// Migration from the fifth layout, in which switches did allreduces alone.
const FROM_5: &str = "ALTER TABLE jobs ADD COLUMN all_collectives INTEGER NOT NULL DEFAULT 0;";
const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS jobs (
  job INTEGER PRIMARY KEY, name TEXT NOT NULL, size INTEGER NOT NULL, max_trees INTEGER NOT NULL,
  release_fraction REAL NOT NULL, congestion TEXT NOT NULL, min_bytes INTEGER NOT NULL,
  created_unix_s REAL NOT NULL, phase TEXT NOT NULL, epoch INTEGER NOT NULL,
  sum_order TEXT, fragment_bytes INTEGER, protocol TEXT NOT NULL, tenant TEXT NOT NULL, scale REAL NOT NULL,
  key BLOB, request INTEGER NOT NULL, all_collectives INTEGER NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS members (
  job INTEGER NOT NULL, rank INTEGER NOT NULL, state TEXT NOT NULL, host TEXT, udp_address TEXT,
  mesh_address TEXT NOT NULL, pid INTEGER NOT NULL, mtu INTEGER NOT NULL, PRIMARY KEY (job, rank)
) STRICT;
CREATE TABLE IF NOT EXISTS plans (
  job INTEGER NOT NULL, epoch INTEGER NOT NULL, body BLOB NOT NULL, PRIMARY KEY (job, epoch)
) STRICT;
";
/// A controller that is about to end releases the file within this time.
const BUSY_TIMEOUT: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::{Job, JobSpec, Member, MemberState, Phase, SessionId};
    use crate::pb;
    use crate::store::{job_row, loaded, member_row};
    use netsum_topo::{Addressing, Fabric, Rate, Topology, leaf_spine};
    use netsum_wire::tag::{JobKey, Mac};

    fn fabric() -> Fabric {
        leaf_spine(2, 2, 2, Rate(1), Rate(1), Addressing::default()).unwrap()
    }

    fn job(id: u32, topology: &Topology) -> Job {
        let request =
            pb::CreateJobRequest { name: format!("job {id}"), size: 2, ..Default::default() };
        let mut job = Job::new(id, JobSpec::check(&request, 7).unwrap(), f64::from(id), 0);
        let member = job.member_mut(1);
        member.state = MemberState::Connected(SessionId(3));
        member.host = topology.find("h1");
        member.udp_address = Some("127.77.1.2:99".parse().unwrap());
        job
    }

    fn row(job: &Job) -> JobRow {
        let fabric = fabric();
        job_row(job, &fabric, &fabric.topology())
    }

    fn member(job: &Job, rank: u32) -> Change {
        let member: &Member = &job.members[rank as usize];
        Change::Member(member_row(job.id, rank, member, &fabric().topology()))
    }

    #[test]
    fn saved_rows_are_loaded_from_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("store.sqlite");
        let topology = fabric().topology();
        let mut store = SqliteStore::open(&file).unwrap();
        let first = store.load().unwrap();
        assert!(first.incarnation != 0 && first.next_job == first_job(first.incarnation));
        let mut saved = job(4, &topology);
        saved.epoch = 9;
        saved.key = Some(JobKey::new(Mac::Aegis, [7; 16]));
        saved.order = Some("[0,1]".parse().unwrap());
        let mut ended = job(5, &topology);
        ended.phase = Phase::Ended;
        let changes =
            [Change::NextJob(6), Change::NewJob(row(&saved)), Change::NewJob(row(&ended))];
        store.save(&changes).unwrap();
        store.save(&[member(&saved, 0), member(&saved, 1)]).unwrap();
        drop(store);
        let mode = || std::fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode() & 0o077, 0, "others may read the keys: {:o}", mode());
        std::fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
        let kept = SqliteStore::open(&file).unwrap().load().unwrap();
        assert_eq!((kept.incarnation, kept.next_job), (first.incarnation, 6));
        assert_eq!(mode() & 0o077, 0, "an existing file is made private, too: {:o}", mode());
        let jobs = loaded(kept, &topology).jobs;
        saved.member_mut(1).state =
            MemberState::Away { since_ms: 0, grace_until_ms: 0, hung_up: false };
        ended.members = vec![Member::awaited().into(); 2];
        assert_eq!(jobs, [saved, ended]);
    }

    #[test]
    fn a_new_job_has_nothing_of_an_old_one_with_its_number() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = SqliteStore::open(&folder.path().join("store.sqlite")).unwrap();
        let topology = fabric().topology();
        let old = job(4, &topology);
        store.save(&[Change::NewJob(row(&old)), member(&old, 1)]).unwrap();
        store.save(&[Change::NewJob(row(&old))]).unwrap();
        assert_eq!(store.load().unwrap().members, []);
    }

    #[test]
    fn a_full_disk_leaves_the_store_as_it_was_and_usable() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = SqliteStore::open(&folder.path().join("store.sqlite")).unwrap();
        let topology = fabric().topology();
        store.save(&[Change::NewJob(row(&job(1, &topology)))]).unwrap();
        let before = store.load().unwrap();
        let pages: u32 =
            store.connection.query_row("PRAGMA page_count", [], |row| row.get(0)).unwrap();
        store.connection.pragma_update(None, "max_page_count", pages).unwrap();
        let mut large = row(&job(2, &topology));
        large.plan = Some(vec![7; 100_000]);
        let changes = [Change::NextJob(99), Change::NewJob(large)];
        let problem = store.save(&changes).unwrap_err().to_string();
        assert!(problem.contains("its disk is full; make space"), "{problem}");
        assert_eq!(store.load().unwrap(), before);
        store.connection.pragma_update(None, "max_page_count", pages + 1000).unwrap();
        store.save(&changes).unwrap();
        assert_eq!((store.load().unwrap().next_job, store.load().unwrap().jobs.len()), (99, 2));
    }

    #[test]
    fn files_of_older_layouts_are_migrated() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("store.sqlite");
        drop(SqliteStore::open(&file).unwrap());
        let old = Connection::open(&file).unwrap();
        old.execute_batch(
            "ALTER TABLE jobs DROP COLUMN protocol; ALTER TABLE jobs DROP COLUMN tenant;
             ALTER TABLE jobs DROP COLUMN scale; ALTER TABLE jobs DROP COLUMN key;
             ALTER TABLE jobs DROP COLUMN request; ALTER TABLE jobs DROP COLUMN all_collectives;
             PRAGMA user_version = 1; DROP TABLE meta;
             INSERT INTO jobs VALUES (3, 'old', 2, 1, 1.0, 'panama', 7, 1.5, 'joining', 0, NULL, NULL);
             INSERT INTO plans VALUES (3, 1, x'00'), (3, 2, x'01');",
        )
        .unwrap();
        drop(old);
        let kept = SqliteStore::open(&file).unwrap().load().unwrap();
        let row = &kept.jobs[0];
        assert_eq!(
            (row.protocol.as_str(), row.tenant.as_str(), row.scale),
            ("panama", "default", 0.0)
        );
        assert_eq!((kept.jobs.len(), kept.next_job, row.plan.as_deref()), (1, 4, Some(&[1][..])));
        assert_ne!(kept.incarnation, 0);
    }

    #[test]
    fn only_the_latest_ended_jobs_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let topology = fabric().topology();
        let mut store = SqliteStore::open(&folder.path().join("store.sqlite")).unwrap();
        let ended = |id| {
            let mut job = job(id, &topology);
            job.phase = Phase::Ended;
            Change::NewJob(row(&job))
        };
        let changes: Vec<Change> = (1..=ENDED_KEPT + 20).map(ended).collect();
        store.save(&changes).unwrap();
        let count: u32 =
            store.connection.query_row("SELECT COUNT(*) FROM jobs", [], |row| row.get(0)).unwrap();
        assert_eq!(count, ENDED_KEPT);
        let loaded = store.load().unwrap().jobs;
        assert_eq!(
            (loaded.len() as u32, loaded[0].job),
            (ENDED_LOADED, ENDED_KEPT + 20 - ENDED_LOADED + 1)
        );
    }

    #[test]
    fn unusable_files_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let open =
            |name: &str| SqliteStore::open(&folder.path().join(name)).unwrap_err().to_string();
        std::fs::write(
            folder.path().join("text"),
            "this is not a database, it is a text. ".repeat(40),
        )
        .unwrap();
        assert!(open("text").contains("not a SQLite file"), "{}", open("text"));
        assert!(
            open("no/such/folder").contains("does its folder exist"),
            "{}",
            open("no/such/folder")
        );
        let held = SqliteStore::open(&folder.path().join("held")).unwrap();
        assert!(open("held").contains("another process holds it"), "{}", open("held"));
        drop(held);
    }
}
