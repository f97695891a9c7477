//! Results as tables: CSV with a line of names, units in the names.

use std::fs::File;
use std::io::{BufWriter, Result, Write};
use std::path::Path;

use super::Part;
use crate::config::Config;
use crate::job::{JobRecord, JobSpec, StepRecord};
use crate::network::LinkCounters;
use crate::simulation::FlowRecord;
use crate::workload::FlowSpec;

/// The files of one run.
pub(super) struct Tables {
    flows: BufWriter<File>,
    steps: BufWriter<File>,
    jobs: BufWriter<File>,
    links: BufWriter<File>,
    samples: BufWriter<File>,
}

impl Tables {
    /// Also writes the effective configuration, and what the columns mean.
    pub(super) fn create(folder: &Path, config: &Config) -> Result<Tables> {
        std::fs::create_dir_all(folder)?;
        let summary = folder.join("summary.json");
        if summary.exists() {
            std::fs::remove_file(summary)?;
        }
        let effective = toml::to_string_pretty(config).map_err(std::io::Error::other)?;
        std::fs::write(folder.join("effective.toml"), effective)?;
        std::fs::write(folder.join("COLUMNS.md"), COLUMNS)?;
        let create = |name: &str, columns: &str| {
            let mut file = BufWriter::new(File::create(folder.join(name))?);
            writeln!(file, "{columns}")?;
            Ok::<_, std::io::Error>(file)
        };
        Ok(Tables {
            flows: create(
                "flows.csv",
                "flow,start_us,src,dst,bytes,received_bytes,fct_us,resent_segments,timeouts",
            )?,
            steps: create("steps.csv", "job,step,start_us,reduce_start_us,end_us")?,
            jobs: create("jobs.csv", "job,model,workers,start_us,end_us,steps")?,
            links: create(
                "links.csv",
                "part,from,to,carried_bytes,utilisation,dropped_packets,marked_packets,waiting_max_packets,pauses,paused_us",
            )?,
            samples: create("samples.csv", "part,time_us,from,to,carried_bytes,waiting_packets")?,
        })
    }

    pub(super) fn flow(&mut self, record: &FlowRecord) -> Result<()> {
        let FlowSpec { start_ps, src, dst, bytes } = record.spec;
        let (number, resent, timeouts) = (record.number, record.resent, record.timeouts);
        let (start, fct) = (us(start_ps), us(record.fct_ps()));
        writeln!(
            self.flows,
            "{number},{start:.6},{src},{dst},{bytes},{bytes},{fct:.6},{resent},{timeouts}"
        )
    }

    pub(super) fn unfinished(&mut self, number: u32, spec: &FlowSpec, received: u64) -> Result<()> {
        let FlowSpec { start_ps, src, dst, bytes } = spec;
        let start = us(*start_ps);
        writeln!(self.flows, "{number},{start:.6},{src},{dst},{bytes},{received},,,")
    }

    pub(super) fn step(&mut self, record: &StepRecord) -> Result<()> {
        let StepRecord { job, step, start_ps, reduce_start_ps, end_ps } = *record;
        let [start, reduce, end] = [start_ps, reduce_start_ps, end_ps].map(us);
        writeln!(self.steps, "{job},{step},{start:.6},{reduce:.6},{end:.6}")
    }

    pub(super) fn job(
        &mut self,
        record: &JobRecord,
        (name, spec): &(String, JobSpec),
    ) -> Result<()> {
        let JobRecord { job, start_ps, end_ps } = *record;
        let (workers, steps, [start, end]) =
            (spec.placement.len(), spec.steps, [start_ps, end_ps].map(us));
        writeln!(self.jobs, "{job},{name},{workers},{start:.6},{end:.6},{steps}")
    }

    pub(super) fn link(
        &mut self,
        part: Part,
        [from, to]: [&str; 2],
        carried: u64,
        utilisation: f64,
        counters: LinkCounters,
    ) -> Result<()> {
        let LinkCounters { drops, marks, waiting_max, pauses, paused_ps } = counters;
        let (part, paused) = (part.name(), us(paused_ps));
        writeln!(
            self.links,
            "{part},{from},{to},{carried},{utilisation:.6},{drops},{marks},{waiting_max},{pauses},{paused:.6}"
        )
    }

    pub(super) fn sample(
        &mut self,
        part: Part,
        at_ps: u64,
        [from, to]: [&str; 2],
        carried: u64,
        waiting: u32,
    ) -> Result<()> {
        writeln!(self.samples, "{},{:.6},{from},{to},{carried},{waiting}", part.name(), us(at_ps))
    }

    /// What was written can be read by others.
    pub(super) fn flush(&mut self) -> Result<()> {
        for file in [&mut self.flows, &mut self.steps, &mut self.jobs, &mut self.samples] {
            file.flush()?;
        }
        Ok(())
    }

    pub(super) fn finish(mut self) -> Result<()> {
        self.flush()?;
        self.links.flush()
    }
}

/// Microseconds, the unit of all tables; six digits behind the point are a picosecond.
pub(super) fn us(ps: u64) -> f64 {
    ps as f64 / 1e6
}

const COLUMNS: &str = "\
# Columns

Times are simulated microseconds since the start of the run, to the picosecond. Hosts are numbered as in the fabric.
`part` is `all`; with the scheme `ideal`, where flows and jobs are simulated apart, `flows` or `jobs`.

| table | column | meaning |
|---|---|---|
| flows.csv | flow | number in the order of the starts |
| | start_us, src, dst, bytes | what was asked for; bytes of payload |
| | received_bytes | payload that had come in order when the run ended |
| | fct_us | from the start until the last byte is at the receiver; empty: not complete |
| | resent_segments, timeouts | of the sender, until then |
| steps.csv | job, step | a training step of a job, both from 0 |
| | start_us | the first worker begins to compute |
| | reduce_start_us | the first worker hands its first gradients over |
| | end_us | the last worker has its last sum |
| jobs.csv | model, workers, start_us, end_us, steps | jobs that are complete |
| links.csv | from, to | one direction of a link |
| | carried_bytes, utilisation | with headers; share of the time that the link was busy |
| | dropped_packets, marked_packets | at the queue before this link |
| | waiting_max_packets | most that waited, counted where marking or dropping could follow |
| | pauses, paused_us | how often, and how long, the far end asked for silence |
| samples.csv | time_us, carried_bytes, waiting_packets | of the links that were asked for |
";
