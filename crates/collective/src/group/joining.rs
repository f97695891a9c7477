//! Joins a group to its job: the host, the job's number, the session with the controller.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::Receiver;
use netsum_control::client::{self, Answerer, ControllerEndpoint, WorkerClient};
use netsum_control::pb;
use netsum_net::worker::{self, WorkerDriver};
use parking_lot::Mutex;

use super::context::Context;
use crate::address::JobNumber;
use crate::coordinator::Fabric;
use crate::status::{Status, controller_error, endpoint};
use crate::{Error, GroupConfig, responder};

impl GroupConfig {
    /// The controller, if trees are useful: one rank has nothing to add. Error: the credentials cannot be used.
    pub(super) fn fabric_controller(&self) -> Result<Option<ControllerEndpoint>, Error> {
        let controller = self.controller.as_deref().filter(|_| self.size > 1);
        controller.map(|address| endpoint(address, self.options.credentials.as_deref())).transpose()
    }
}

/// What a rank with a controller has opened before it knows the others.
pub(super) struct Data {
    pub(super) controller: ControllerEndpoint,
    pub(super) driver: Arc<WorkerDriver>,
    pub(super) events: Receiver<worker::Event>,
}

pub(super) fn join(
    context: &Context<'_>,
    data: Data,
    status: &Mutex<Status>,
) -> Result<Fabric, Error> {
    let Context { config, address, all, .. } = *context;
    let Data { controller, driver, events } = data;
    let JobNumber { job, incarnation } = all[0].job.ok_or_else(|| Error::Connect {
        group: config.name.clone(),
        reason: "rank 0 has registered no job; give all ranks the same controller".to_owned(),
    })?;
    status.lock().job = Some(job);
    let join = pb::Join {
        job,
        rank: config.rank,
        host: address.host.clone(),
        udp_address: driver.local_addr().to_string(),
        mesh_address: address.mesh.to_string(),
        pid: address.pid,
        mtu: netsum_net::mtu_of(driver.local_addr().ip()).unwrap_or(MTU_USUAL),
        incarnation,
        description: Some(description(config)),
        ..pb::Join::default()
    };
    let answerer: Answerer = Arc::new(responder::answer_by);
    let started = WorkerClient::start_answering(&controller, join, config.size, Some(answerer));
    let (client, notices) = started.map_err(|e| controller_error(&e))?;
    Ok(Fabric { driver, events, client, notices })
}

pub(super) fn place_in_fabric(
    config: &GroupConfig,
    controller: &ControllerEndpoint,
) -> Result<(IpAddr, String), Error> {
    let fabric = client::fabric(controller, config.timeout.min(CALL_TIMEOUT))
        .map_err(|e| controller_error(&e))?;
    let host = client::choose_host(&fabric, config.host.as_deref(), config.rank, config.size);
    let host = host.map_err(|e| controller_error(&e))?;
    let ip = host.address.parse();
    let ip = ip.map_err(|_| {
        Error::Controller(format!("host {} has the address {:?}", host.name, host.address))
    })?;
    Ok((ip, host.name))
}

pub(super) fn create_job(
    config: &GroupConfig,
    controller: &ControllerEndpoint,
) -> Result<JobNumber, Error> {
    let timeout = config.timeout.min(CALL_TIMEOUT);
    let reply = client::create_job(controller, description(config), timeout);
    let number = |r: pb::CreateJobReply| JobNumber { job: r.job, incarnation: r.incarnation };
    reply.map(number).map_err(|e| controller_error(&e))
}

/// The job that the group requests from the controller.
fn description(config: &GroupConfig) -> pb::CreateJobRequest {
    let options = &config.options;
    pb::CreateJobRequest {
        name: config.name.clone(),
        size: config.size,
        max_trees: options.max_trees,
        release_fraction: options.release_fraction,
        congestion: options.congestion.to_string(),
        protocol: options.protocol.clone(),
        min_bytes: options.min_bytes,
        tenant: options.tenant.clone(),
        scale: options.scale,
        encrypt: options.encrypt,
        all_collectives: options.all_collectives,
        ..Default::default()
    }
}

/// The MTU of an interface that does not report one.
const MTU_USUAL: u32 = 1500;
/// Time-out of a single call to the controller: much longer than it takes to notice that the controller is gone, since a
/// busy one may have many jobs to begin before this one.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);
