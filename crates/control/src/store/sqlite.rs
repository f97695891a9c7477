//! The store in one SQLite file.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use netsum_topo::{Fabric, Plan, SumOrder, Topology};
use netsum_wire::tag::JobKey;
use prost::Message;
use rusqlite::{Connection, ErrorCode, OptionalExtension, Row, Transaction, params};

use super::{Loaded, Store};
use crate::convert::{plan_from_message, plan_message};
use crate::decide::{AUTO, Job, JobSpec, Member, MemberState, Phase};
use crate::error::ControlError;
use crate::pb;

/// A store in a file, or in memory.
#[derive(Debug)]
pub struct SqliteStore {
    connection: Connection,
    file: PathBuf,
}

impl SqliteStore {
    /// Opens or creates the file. Errors name the file and say what to do; a file that another
    /// controller holds is refused.
    pub fn open(file: &Path) -> Result<SqliteStore, ControlError> {
        let fail = |error| failure(file, error);
        // It holds the jobs' keys. SQLite says in better words why a file cannot be made.
        let _ = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(file);
        let connection = Connection::open(file).map_err(fail)?;
        SqliteStore::prepare(connection, file.to_owned())
    }

    /// A store that ends with the process.
    pub fn in_memory() -> Result<SqliteStore, ControlError> {
        let file = PathBuf::from(":memory:");
        let connection = Connection::open_in_memory().map_err(|error| failure(&file, error))?;
        SqliteStore::prepare(connection, file)
    }

    fn prepare(mut connection: Connection, file: PathBuf) -> Result<SqliteStore, ControlError> {
        let fail = |error| failure(&file, error);
        connection.busy_timeout(BUSY_TIMEOUT).map_err(fail)?;
        // One controller per file: the lock is taken with the first access and held.
        connection.pragma_update(None, "locking_mode", "EXCLUSIVE").map_err(fail)?;
        connection.pragma_update(None, "journal_mode", "WAL").map_err(fail)?;
        // After a power cut the last instants may be missing, never the consistency; after the death
        // of the process alone nothing is missing.
        connection.pragma_update(None, "synchronous", "NORMAL").map_err(fail)?;
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
        transaction.pragma_update(None, "user_version", SCHEMA_VERSION).map_err(fail)?;
        transaction.commit().map_err(fail)?;
        Ok(SqliteStore { connection, file })
    }

    fn read_jobs(&mut self, topology: &Topology) -> rusqlite::Result<Loaded> {
        let transaction = self.connection.transaction()?;
        let next_job =
            transaction
                .query_row("SELECT COALESCE(MAX(job), 0) + 1 FROM jobs", [], |row| row.get(0))?;
        let mut jobs = Vec::new();
        {
            let mut statement =
                transaction.prepare("SELECT * FROM jobs WHERE phase != 'ended' ORDER BY job")?;
            let mut rows = statement.query([])?;
            while let Some(row) = rows.next()? {
                let mut job = job_from(row)?;
                job.members = read_members(&transaction, &job, topology)?;
                job.current = read_plan(&transaction, job.id, topology)?;
                jobs.push(job);
            }
        }
        Ok(Loaded { jobs, next_job })
    }

    fn write_job(
        &mut self,
        job: &Job,
        fabric: &Fabric,
        topology: &Topology,
    ) -> rusqlite::Result<()> {
        let transaction = self.connection.transaction()?;
        write_job_row(&transaction, job)?;
        if let Some(plan) = &job.current {
            let body = plan_message(plan, fabric, topology).encode_to_vec();
            transaction
                .prepare_cached(
                    "INSERT OR REPLACE INTO plans (job, epoch, body) VALUES (?1, ?2, ?3)",
                )?
                .execute(params![job.id, plan.epoch, body])?;
        }
        if job.phase == Phase::Ended {
            prune(&transaction)?;
        }
        transaction.commit()
    }

    fn write_one_member(
        &mut self,
        job: &Job,
        rank: u32,
        topology: &Topology,
    ) -> rusqlite::Result<()> {
        let transaction = self.connection.transaction()?;
        if let Some(member) = job.members.get(rank as usize) {
            write_member(&transaction, job.id, rank, member, topology)?;
        }
        transaction.commit()
    }
}

impl Store for SqliteStore {
    fn load(&mut self, topology: &Topology) -> Result<Loaded, ControlError> {
        self.read_jobs(topology).map_err(|error| failure(&self.file, error))
    }

    fn save_job(
        &mut self,
        job: &Job,
        fabric: &Fabric,
        topology: &Topology,
    ) -> Result<(), ControlError> {
        self.write_job(job, fabric, topology).map_err(|error| failure(&self.file, error))
    }

    fn save_member(
        &mut self,
        job: &Job,
        rank: u32,
        topology: &Topology,
    ) -> Result<(), ControlError> {
        self.write_one_member(job, rank, topology).map_err(|error| failure(&self.file, error))
    }
}

fn write_job_row(transaction: &Transaction, job: &Job) -> rusqlite::Result<()> {
    let order = job.order.as_ref().map(SumOrder::to_string);
    transaction
        .prepare_cached(
            "INSERT OR REPLACE INTO jobs (job, name, size, max_trees, release_fraction, congestion, min_bytes,
               created_unix_s, phase, epoch, sum_order, fragment_bytes, protocol, tenant, scale, key)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16)",
        )?
        .execute(params![
            job.id,
            job.spec.name,
            job.spec.size,
            job.spec.max_trees,
            job.spec.release_fraction,
            job.spec.congestion.to_string(),
            // SQLite's integers are signed; more than 2⁶³ bytes and "never" are the same.
            i64::try_from(job.spec.min_bytes).unwrap_or(i64::MAX),
            job.created_unix_s,
            phase_name(job.phase),
            job.epoch,
            order,
            job.fragment_bytes,
            job.spec.protocol.map_or_else(|| AUTO.to_owned(), |protocol| protocol.to_string()),
            job.spec.tenant,
            job.spec.scale,
            job.key.map(|key| *key.bytes()),
        ])
        .map(drop)
}

fn write_member(
    transaction: &Transaction,
    job: u32,
    rank: u32,
    member: &Member,
    topology: &Topology,
) -> rusqlite::Result<()> {
    let state = match member.state {
        MemberState::Awaited => "awaited",
        // A stream does not outlive the controller.
        MemberState::Connected(_) | MemberState::Away { .. } => "present",
        MemberState::Left => "left",
        MemberState::Lost => "lost",
    };
    transaction
        .prepare_cached(
            "INSERT OR REPLACE INTO members (job, rank, state, host, udp_address, mesh_address, pid, mtu)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
        )?
        .execute(params![
            job,
            rank,
            state,
            member.host.map(|host| topology.name(host)),
            member.udp_address.map(|address| address.to_string()),
            member.mesh_address,
            member.pid,
            member.mtu,
        ])
        .map(drop)
}

/// Jobs that are over make room, all but the latest; the highest number always stays.
fn prune(transaction: &Transaction) -> rusqlite::Result<()> {
    let old = "SELECT job FROM jobs WHERE phase = 'ended' AND job < (SELECT MAX(job) FROM jobs)
               ORDER BY job DESC LIMIT -1 OFFSET ?1";
    for table in ["plans", "members", "jobs"] {
        transaction.execute(&format!("DELETE FROM {table} WHERE job IN ({old})"), [ENDED_KEPT])?;
    }
    Ok(())
}

fn job_from(row: &Row) -> rusqlite::Result<Job> {
    let spec = JobSpec {
        name: row.get("name")?,
        size: row.get("size")?,
        max_trees: row.get("max_trees")?,
        release_fraction: row.get("release_fraction")?,
        congestion: row.get::<_, String>("congestion")?.parse().unwrap_or_default(),
        min_bytes: row.get::<_, i64>("min_bytes")?.unsigned_abs(),
        protocol: match row.get::<_, String>("protocol")?.as_str() {
            AUTO => None,
            name => Some(name.parse().unwrap_or_default()),
        },
        tenant: row.get("tenant")?,
        scale: row.get("scale")?,
    };
    let mut job = Job::new(row.get("job")?, spec, row.get("created_unix_s")?, 0);
    job.phase = if row.get::<_, String>("phase")? == phase_name(Phase::Joining) {
        Phase::Joining
    } else {
        Phase::Running
    };
    job.epoch = row.get("epoch")?;
    job.order = row.get::<_, Option<String>>("sum_order")?.and_then(|order| order.parse().ok());
    job.fragment_bytes = row.get("fragment_bytes")?;
    job.key = row.get::<_, Option<[u8; 16]>>("key")?.map(JobKey::new);
    Ok(job)
}

fn read_members(
    transaction: &Transaction,
    job: &Job,
    topology: &Topology,
) -> rusqlite::Result<Vec<Member>> {
    let mut members = job.members.clone();
    let mut statement =
        transaction.prepare_cached("SELECT * FROM members WHERE job = ?1 ORDER BY rank")?;
    let mut rows = statement.query([job.id])?;
    while let Some(row) = rows.next()? {
        let rank: u32 = row.get("rank")?;
        let Some(member) = members.get_mut(rank as usize) else { continue };
        member.state = match row.get::<_, String>("state")?.as_str() {
            "present" => MemberState::Away { until_ms: 0 },
            "left" => MemberState::Left,
            "lost" => MemberState::Lost,
            _ => MemberState::Awaited,
        };
        member.host = row.get::<_, Option<String>>("host")?.and_then(|name| topology.find(&name));
        member.udp_address =
            row.get::<_, Option<String>>("udp_address")?.and_then(|address| address.parse().ok());
        member.mesh_address = row.get("mesh_address")?;
        member.pid = row.get("pid")?;
        member.mtu = row.get("mtu")?;
    }
    Ok(members)
}

/// The newest plan of a job, if the fabric still has all its switches.
fn read_plan(
    transaction: &Transaction,
    job: u32,
    topology: &Topology,
) -> rusqlite::Result<Option<Plan>> {
    let mut statement = transaction
        .prepare_cached("SELECT body FROM plans WHERE job = ?1 ORDER BY epoch DESC LIMIT 1")?;
    let body: Option<Vec<u8>> = statement.query_row([job], |row| row.get(0)).optional()?;
    let plan = body.and_then(|body| pb::Plan::decode(body.as_slice()).ok());
    Ok(plan.and_then(|plan| plan_from_message(&plan, topology).ok()))
}

fn phase_name(phase: Phase) -> &'static str {
    match phase {
        Phase::Joining => "joining",
        Phase::Running => "running",
        Phase::Ended => "ended",
    }
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
        Some(ErrorCode::CannotOpen) => {
            "it cannot be opened; does its folder exist, and may you write there?".to_owned()
        }
        _ => error.to_string(),
    };
    ControlError::Store { file: file.to_owned(), problem }
}

const SCHEMA_VERSION: u32 = 3;
/// From the first layout, in which every job was of `panama`.
const FROM_1: &str = "
ALTER TABLE jobs ADD COLUMN protocol TEXT NOT NULL DEFAULT 'panama';
ALTER TABLE jobs ADD COLUMN tenant TEXT NOT NULL DEFAULT 'default';
ALTER TABLE jobs ADD COLUMN scale REAL NOT NULL DEFAULT 0;
";
/// From the second, in which no packet had a tag: its jobs go on so.
const FROM_2: &str = "ALTER TABLE jobs ADD COLUMN key BLOB;";
const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS jobs (
  job INTEGER PRIMARY KEY, name TEXT NOT NULL, size INTEGER NOT NULL, max_trees INTEGER NOT NULL,
  release_fraction REAL NOT NULL, congestion TEXT NOT NULL, min_bytes INTEGER NOT NULL,
  created_unix_s REAL NOT NULL, phase TEXT NOT NULL, epoch INTEGER NOT NULL,
  sum_order TEXT, fragment_bytes INTEGER, protocol TEXT NOT NULL, tenant TEXT NOT NULL, scale REAL NOT NULL,
  key BLOB
) STRICT;
CREATE TABLE IF NOT EXISTS members (
  job INTEGER NOT NULL, rank INTEGER NOT NULL, state TEXT NOT NULL, host TEXT, udp_address TEXT,
  mesh_address TEXT NOT NULL, pid INTEGER NOT NULL, mtu INTEGER NOT NULL, PRIMARY KEY (job, rank)
) STRICT;
CREATE TABLE IF NOT EXISTS plans (
  job INTEGER NOT NULL, epoch INTEGER NOT NULL, body BLOB NOT NULL, PRIMARY KEY (job, epoch)
) STRICT;
";
/// A controller that is about to end gives the file up within this time.
const BUSY_TIMEOUT: Duration = Duration::from_millis(500);
/// Jobs that are over and still in the file.
const ENDED_KEPT: u32 = 1000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::SessionId;
    use netsum_topo::{Addressing, Rate, leaf_spine};
    use std::os::unix::fs::PermissionsExt;

    fn fabric() -> Fabric {
        leaf_spine(2, 2, 2, Rate(1), Rate(1), Addressing::default()).unwrap()
    }

    fn job(id: u32, topology: &Topology) -> Job {
        let request =
            pb::CreateJobRequest { name: format!("job {id}"), size: 2, ..Default::default() };
        let mut job = Job::new(id, JobSpec::check(&request, 7).unwrap(), 1.5, 0);
        job.members[1].state = MemberState::Connected(SessionId(3));
        job.members[1].host = topology.find("h1");
        job.members[1].udp_address = Some("127.77.1.2:99".parse().unwrap());
        job
    }

    #[test]
    fn what_was_saved_is_loaded_from_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("store.sqlite");
        let (fabric, topology) = (fabric(), fabric().topology());
        let mut store = SqliteStore::open(&file).unwrap();
        let mut saved = job(4, &topology);
        saved.epoch = 9;
        saved.key = Some(JobKey::new([7; 16]));
        saved.order = Some("[0,1]".parse().unwrap());
        store.save_job(&saved, &fabric, &topology).unwrap();
        store.save_member(&saved, 1, &topology).unwrap();
        let mut ended = job(5, &topology);
        ended.phase = Phase::Ended;
        store.save_job(&ended, &fabric, &topology).unwrap();
        drop(store);
        let mode = std::fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "others may read the keys: {mode:o}");
        let loaded = SqliteStore::open(&file).unwrap().load(&topology).unwrap();
        saved.members[1].state = MemberState::Away { until_ms: 0 };
        saved.phase = Phase::Joining;
        assert_eq!(loaded, Loaded { jobs: vec![saved], next_job: 6 });
    }

    #[test]
    fn a_file_of_the_first_layout_is_taken_over() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("store.sqlite");
        let topology = fabric().topology();
        drop(SqliteStore::open(&file).unwrap());
        let old = Connection::open(&file).unwrap();
        old.execute_batch(
            "ALTER TABLE jobs DROP COLUMN protocol; ALTER TABLE jobs DROP COLUMN tenant;
             ALTER TABLE jobs DROP COLUMN scale; ALTER TABLE jobs DROP COLUMN key; PRAGMA user_version = 1;
             INSERT INTO jobs VALUES (3, 'old', 2, 1, 1.0, 'panama', 7, 1.5, 'joining', 0, NULL, NULL);",
        )
        .unwrap();
        drop(old);
        let loaded = SqliteStore::open(&file).unwrap().load(&topology).unwrap();
        let spec = &loaded.jobs[0].spec;
        assert_eq!(spec.protocol, Some(netsum_topo::Protocol::Panama));
        assert_eq!((spec.tenant.as_str(), spec.scale, loaded.next_job), ("default", 0.0, 4));
    }

    #[test]
    fn old_jobs_go_and_numbers_stay_used() {
        let (fabric, topology) = (fabric(), fabric().topology());
        let mut store = SqliteStore::in_memory().unwrap();
        for id in 1..=ENDED_KEPT + 20 {
            let mut job = job(id, &topology);
            job.phase = Phase::Ended;
            store.save_job(&job, &fabric, &topology).unwrap();
        }
        let count: u32 =
            store.connection.query_row("SELECT COUNT(*) FROM jobs", [], |row| row.get(0)).unwrap();
        assert_eq!(count, ENDED_KEPT + 1);
        assert_eq!(store.load(&topology).unwrap().next_job, ENDED_KEPT + 21);
    }

    #[test]
    fn files_that_cannot_be_used_are_named() {
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
