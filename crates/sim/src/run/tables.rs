//! Result tables; the names of columns contain the units.

use std::io::Result;
use std::path::Path;

use super::Part;
use super::table::Cell::{Empty, Float, Int, Text};
use super::table::{Cell, Column, Kind, Table};
use crate::config::Config;
use crate::job::{JobRecord, JobSpec, StepRecord};
use crate::network::LinkCounters;
use crate::simulation::FlowRecord;
use crate::workload::FlowSpec;

/// The files of one run.
pub(super) struct Tables {
    flows: Table,
    steps: Table,
    jobs: Table,
    links: Table,
    samples: Table,
}

impl Tables {
    /// Creates the tables, and writes the effective configuration and the description of the columns.
    pub(super) fn create(folder: &Path, config: &Config) -> Result<Tables> {
        std::fs::create_dir_all(folder)?;
        let summary = folder.join("summary.json");
        if summary.exists() {
            std::fs::remove_file(summary)?;
        }
        let effective = toml::to_string_pretty(config).map_err(std::io::Error::other)?;
        std::fs::write(folder.join("effective.toml"), effective)?;
        std::fs::write(folder.join("COLUMNS.md"), COLUMNS)?;
        let create = |name, columns| Table::create(folder, name, columns, config.format);
        Ok(Tables {
            flows: create("flows", FLOWS)?,
            steps: create("steps", STEPS)?,
            jobs: create("jobs", JOBS)?,
            links: create("links", LINKS)?,
            samples: create("samples", SAMPLES)?,
        })
    }

    pub(super) fn flow(&mut self, record: &FlowRecord) -> Result<()> {
        let FlowSpec { bytes, .. } = record.spec;
        let outcome = [
            Int(bytes),
            Float(us(record.fct_ps())),
            Int(record.resent),
            Int(u64::from(record.timeouts)),
        ];
        self.flow_row(record.number, &record.spec, outcome)
    }

    pub(super) fn unfinished(&mut self, number: u32, spec: &FlowSpec, received: u64) -> Result<()> {
        self.flow_row(number, spec, [Int(received), Empty, Empty, Empty])
    }

    fn flow_row(&mut self, number: u32, spec: &FlowSpec, outcome: [Cell; 4]) -> Result<()> {
        let FlowSpec { start_ps, src, dst, bytes } = *spec;
        let [received, fct, resent, timeouts] = outcome;
        let [number, src, dst] = [number, src, dst].map(|v| Int(u64::from(v)));
        let start = Float(us(start_ps));
        self.flows.row(&[number, start, src, dst, Int(bytes), received, fct, resent, timeouts])
    }

    pub(super) fn step(&mut self, record: &StepRecord) -> Result<()> {
        let StepRecord { job, step, start_ps, reduce_start_ps, end_ps } = *record;
        let [start, reduce, end] = [start_ps, reduce_start_ps, end_ps].map(|ps| Float(us(ps)));
        self.steps.row(&[Int(job.into()), Int(step.into()), start, reduce, end])
    }

    pub(super) fn job(
        &mut self,
        record: &JobRecord,
        (name, spec): &(String, JobSpec),
    ) -> Result<()> {
        let JobRecord { job, start_ps, end_ps } = *record;
        let [start, end] = [start_ps, end_ps].map(|ps| Float(us(ps)));
        let (workers, steps) = (Int(spec.placement.len() as u64), Int(spec.steps.into()));
        self.jobs.row(&[Int(job.into()), Text(name), workers, start, end, steps])
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
        self.links.row(&[
            Text(part.name()),
            Text(from),
            Text(to),
            Int(carried),
            Float(utilisation),
            Int(drops),
            Int(marks),
            Int(waiting_max.into()),
            Int(pauses.into()),
            Float(us(paused_ps)),
        ])
    }

    pub(super) fn sample(
        &mut self,
        part: Part,
        at_ps: u64,
        [from, to]: [&str; 2],
        carried: u64,
        waiting: u32,
    ) -> Result<()> {
        let (time, waiting) = (Float(us(at_ps)), Int(waiting.into()));
        self.samples.row(&[Text(part.name()), time, Text(from), Text(to), Int(carried), waiting])
    }

    /// Makes the rows so far readable, if the format allows it.
    pub(super) fn flush(&mut self) -> Result<()> {
        let Tables { flows, steps, jobs, links, samples } = self;
        [flows, steps, jobs, links, samples].into_iter().try_for_each(Table::flush)
    }

    pub(super) fn finish(self) -> Result<()> {
        let Tables { flows, steps, jobs, links, samples } = self;
        [flows, steps, jobs, links, samples].into_iter().try_for_each(Table::finish)
    }
}

/// Microseconds, the unit of all tables; six decimal places are a picosecond.
pub(super) fn us(ps: u64) -> f64 {
    ps as f64 / 1e6
}

const FLOWS: &[Column] = &[
    ("flow", Kind::Int),
    ("start_us", Kind::Float),
    ("src", Kind::Int),
    ("dst", Kind::Int),
    ("bytes", Kind::Int),
    ("received_bytes", Kind::Int),
    ("fct_us", Kind::MaybeFloat),
    ("resent_segments", Kind::MaybeInt),
    ("timeouts", Kind::MaybeInt),
];
const STEPS: &[Column] = &[
    ("job", Kind::Int),
    ("step", Kind::Int),
    ("start_us", Kind::Float),
    ("reduce_start_us", Kind::Float),
    ("end_us", Kind::Float),
];
const JOBS: &[Column] = &[
    ("job", Kind::Int),
    ("model", Kind::Text),
    ("workers", Kind::Int),
    ("start_us", Kind::Float),
    ("end_us", Kind::Float),
    ("steps", Kind::Int),
];
const LINKS: &[Column] = &[
    ("part", Kind::Text),
    ("from", Kind::Text),
    ("to", Kind::Text),
    ("carried_bytes", Kind::Int),
    ("utilisation", Kind::Float),
    ("dropped_packets", Kind::Int),
    ("marked_packets", Kind::Int),
    ("waiting_max_packets", Kind::Int),
    ("pauses", Kind::Int),
    ("paused_us", Kind::Float),
];
const SAMPLES: &[Column] = &[
    ("part", Kind::Text),
    ("time_us", Kind::Float),
    ("from", Kind::Text),
    ("to", Kind::Text),
    ("carried_bytes", Kind::Int),
    ("waiting_packets", Kind::Int),
];

const COLUMNS: &str = "\
# Columns

Times are simulated microseconds since the start of the run, to the picosecond. Hosts are numbered as in the fabric.
Tables are NAME.csv or, with the format `parquet`, NAME.parquet: the same columns; whole numbers as INT64, times and shares as
DOUBLE, an empty field as null.
`part` is `all`; with the scheme `ideal`, where flows and jobs are simulated apart, `flows` or `jobs`.

| table | column | meaning |
|---|---|---|
| flows | flow | number in the order of the starts |
| | start_us, src, dst, bytes | what was asked for; bytes of payload |
| | received_bytes | payload that had come in order when the run ended |
| | fct_us | from the start until the last byte is at the receiver; empty: not complete |
| | resent_segments, timeouts | of the sender, until then; empty: not complete |
| steps | job, step | a training step of a job, both from 0 |
| | start_us | the first worker begins to compute |
| | reduce_start_us | the first worker hands its first gradients over |
| | end_us | the last worker has its last sum |
| jobs | model, workers, start_us, end_us, steps | jobs that are complete |
| links | from, to | one direction of a link |
| | carried_bytes, utilisation | with headers; share of the time until the run ended, which may be before or after `duration`, that the link was busy |
| | dropped_packets, marked_packets | at the queue before this link |
| | waiting_max_packets | most that waited, counted where marking or dropping could follow |
| | pauses, paused_us | how often, and how long, the far end asked for silence |
| samples | time_us, carried_bytes, waiting_packets | of the links that were asked for |
";
