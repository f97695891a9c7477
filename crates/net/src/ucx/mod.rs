//! Active messages over UCX, which uses the available networks: InfiniBand, RoCE, shared memory, TCP. UCX's variables
//! select them (`UCX_TLS`, `UCX_NET_DEVICES`); `ucx_info -d` lists those of a machine.
//!
//! Owns: the library, loaded at run time, and a [`Worker`] per mesh. Must not know: the meaning of messages. UCX's
//! callbacks only record events, which [`Worker::progress`] returns. A lock serialises the threads, so that UCX needs
//! no locking.

#![allow(unsafe_code)]

mod library;

use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::os::fd::RawFd;
use std::ptr::{null, null_mut};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use crate::{Buffer, Loan};
use library::{
    API, CANCELED, CLOSE_FORCE, EndpointParams, FEATURE_AM, FEATURE_WAKEUP, HandlerParams,
    IN_PROGRESS, Library, MESSAGE, OK, Params, RECEIVED_RENDEZVOUS, ReceiveParams, RequestParams,
    SEND_EAGER, SEND_RENDEZVOUS, Status, UNREACHABLE, WorkerParams,
};

/// Why UCX cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UcxError {
    /// The library is not installed.
    #[error("cannot load UCX: {0} (Debian: apt install libucx0; or choose network tcp)")]
    Missing(String),
    /// UCX has no transport to a rank.
    #[error(
        "UCX has no transport to rank {rank} ({reason}); UCX_TLS={tls}; `ucx_info -d` lists this machine's"
    )]
    Unreachable {
        /// The rank.
        rank: u32,
        /// UCX's description of the error.
        reason: String,
        /// The value of `UCX_TLS`, or "unset".
        tls: String,
    },
    /// A call of UCX failed.
    #[error("UCX: {call}: {reason}")]
    Call {
        /// The function.
        call: &'static str,
        /// UCX's description of the error.
        reason: String,
    },
}

/// Bytes of a message's header.
pub(crate) const HEADER_LEN: usize = 68;

pub(crate) type Header = [u8; HEADER_LEN];

/// A received message or a completed operation.
pub(crate) enum Event {
    /// A message with its bytes.
    Whole { header: Header, bytes: Vec<u8> },
    /// A message whose bytes are still at the sender, to be fetched or discarded.
    Waiting { header: Header, bytes: Waiting },
    /// The operation of that token has ended; its memory is free.
    Done { token: Token, outcome: Outcome },
    /// The connection to a rank is broken.
    Broken { rank: u32, reason: String },
}

/// The caller's identifier of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Token {
    /// A send to a rank.
    Send { to: u32, number: u64 },
    /// A fetch.
    Fetch { number: u64 },
}

/// How an operation ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Complete,
    /// The receiver does not want the message, or the worker was closed.
    Cancelled,
    Failed(String),
}

/// UCX's descriptor of bytes that are still at the sender.
pub(crate) struct Waiting {
    descriptor: *mut c_void,
    pub(crate) len: usize,
}

// SAFETY: a descriptor that is used only under the worker's lock.
unsafe impl Send for Waiting {}

/// Transfer mode of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// The bytes are sent with the message.
    Eager,
    /// The receiver fetches the bytes into the target.
    Rendezvous,
}

/// One endpoint of active messages with several ranks.
pub(crate) struct Worker {
    inner: Mutex<Option<Inner>>,
    address: Vec<u8>,
    fd: RawFd,
}

impl Worker {
    pub(crate) fn open() -> Result<Worker, UcxError> {
        let inner = Inner::open()?;
        let (address, fd) = (inner.address()?, inner.fd()?);
        tracing::debug!(version = inner.library.version(), "UCX is loaded");
        Ok(Worker { inner: Mutex::new(Some(inner)), address, fd })
    }

    /// The address by which others reach this worker.
    pub(crate) fn address(&self) -> &[u8] {
        &self.address
    }

    /// Connects to the workers with those addresses, by rank; `None` at the own rank. Errors: there is no transport.
    pub(crate) fn connect(&self, addresses: &[Option<Vec<u8>>]) -> Result<(), UcxError> {
        self.inner.lock().as_mut().map_or(Ok(()), |inner| inner.connect(addresses))
    }

    /// Sends a message; true if it has been sent already and its bytes are free, else an event with `token` follows.
    pub(crate) fn send(
        &self,
        token: (u32, u64),
        header: &Header,
        bytes: Option<(&Loan, Range<usize>)>,
        how: How,
    ) -> Result<bool, String> {
        let mut inner = self.inner.lock();
        let inner = inner.as_mut().ok_or(CLOSED)?;
        inner.send(token, header, bytes, how)
    }

    /// Fetches the bytes of a message into `into`, which has the same length; true if complete, else an event with
    /// `number` follows.
    pub(crate) fn fetch(
        &self,
        number: u64,
        waiting: &Waiting,
        into: Buffer,
    ) -> Result<bool, String> {
        let mut inner = self.inner.lock();
        let inner = inner.as_mut().ok_or(CLOSED)?;
        inner.fetch(number, waiting, into)
    }

    /// Tells the sender that the bytes are not wanted.
    pub(crate) fn discard(&self, waiting: &Waiting) {
        if let Some(inner) = self.inner.lock().as_ref() {
            inner.discard(waiting);
        }
    }

    /// Makes progress and appends the events; false if there were none.
    pub(crate) fn progress(&self, events: &mut Vec<Event>) -> bool {
        self.inner.lock().as_mut().is_some_and(|inner| inner.progress(events))
    }

    /// The descriptor that becomes readable when there is work; -1 after the end. `None`: there is work already.
    pub(crate) fn arm(&self) -> Option<RawFd> {
        let inner = self.inner.lock();
        let Some(inner) = inner.as_ref() else { return Some(-1) };
        // SAFETY: the worker lives as long as `inner`, which is locked.
        (unsafe { (inner.library.worker_arm)(inner.worker) } == OK).then_some(self.fd)
    }

    /// Ends all operations; those in progress are among `events`, and access no memory any more. `Waiting` messages
    /// among the events can be neither fetched nor discarded.
    pub(crate) fn close(&self, events: &mut Vec<Event>) {
        if let Some(mut inner) = self.inner.lock().take() {
            inner.end(events);
        }
    }
}

struct Inner {
    library: &'static Library,
    context: *mut c_void,
    worker: *mut c_void,
    /// By rank; null at the own rank.
    endpoints: Vec<*mut c_void>,
    /// Whether UCX reports dead peers and releases the memory of operations with them.
    detects_failures: bool,
    /// Written by UCX's callbacks, which run only inside calls under this lock.
    inbox: *mut Inbox,
    /// Pending operations, by ticket number.
    open: FxHashMap<u64, Open>,
    next: u64,
    /// A preallocated ticket for the next message: most messages complete at once and need none.
    spare: Option<Box<Ticket>>,
}

// SAFETY: pointers to UCX's objects and the inbox, used only under the worker's lock, which serialises calls as UCX
// requires.
unsafe impl Send for Inner {}

/// An operation that UCX has not completed.
struct Open {
    token: Token,
    /// UCX reads or writes these until the request is complete.
    _bytes: Option<Bytes>,
    /// Argument of the operation's callback.
    ticket: Box<Ticket>,
}

/// Memory that UCX uses.
enum Bytes {
    Read(#[expect(dead_code, reason = "kept, not used")] Loan),
    Written(#[expect(dead_code, reason = "kept, not used")] Buffer),
}

struct Ticket {
    inbox: *mut Inbox,
    number: u64,
    header: Header,
}

#[derive(Default)]
struct Inbox {
    events: Vec<Event>,
    /// Completed requests, by ticket number.
    complete: Vec<(u64, *mut c_void, Status)>,
    broken: Vec<(*mut c_void, Status)>,
}

impl Inner {
    fn open() -> Result<Inner, UcxError> {
        let library = Library::get()?;
        let inbox = Box::into_raw(Box::new(Inbox::default()));
        let mut inner = Inner {
            library,
            context: null_mut(),
            worker: null_mut(),
            endpoints: Vec::new(),
            detects_failures: true,
            inbox,
            open: FxHashMap::default(),
            next: 0,
            spare: None,
        };
        let mut config = null_mut();
        // SAFETY: no prefix and no file are given; `config` receives the result.
        let status = unsafe { (library.config_read)(null(), null(), &raw mut config) };
        inner.check("ucp_config_read", status)?;
        let params = Params::new(FEATURE_AM | FEATURE_WAKEUP);
        // SAFETY: parameters and configuration live until the call returns; the configuration is released once.
        let status = unsafe {
            let (params, context) = (&raw const params, &raw mut inner.context);
            let status = (library.init_version)(API.0, API.1, params, config, context);
            (library.config_release)(config);
            status
        };
        inner.check("ucp_init", status)?;
        let params = WorkerParams::serialized();
        // SAFETY: a context, parameters that live until the call returns, and memory for the result.
        let status = unsafe {
            (library.worker_create)(inner.context, &raw const params, &raw mut inner.worker)
        };
        inner.check("ucp_worker_create", status)?;
        let handler = HandlerParams::new(on_message, inbox.cast());
        // SAFETY: a worker, parameters that live until the call returns; the inbox outlives the worker (see `drop`).
        let status =
            unsafe { (library.worker_set_am_recv_handler)(inner.worker, &raw const handler) };
        inner.check("ucp_worker_set_am_recv_handler", status)?;
        Ok(inner)
    }

    fn check(&self, call: &'static str, status: Status) -> Result<(), UcxError> {
        match status {
            OK => Ok(()),
            status => Err(UcxError::Call { call, reason: self.library.words(status) }),
        }
    }

    fn address(&self) -> Result<Vec<u8>, UcxError> {
        let (mut address, mut len) = (null_mut(), 0);
        // SAFETY: a worker and memory for two results.
        let status = unsafe {
            (self.library.worker_get_address)(self.worker, &raw mut address, &raw mut len)
        };
        self.check("ucp_worker_get_address", status)?;
        // SAFETY: UCX returned that many bytes; they are copied before they are released, once.
        unsafe {
            let copy = std::slice::from_raw_parts(address.cast::<u8>(), len).to_vec();
            (self.library.worker_release_address)(self.worker, address);
            Ok(copy)
        }
    }

    fn fd(&self) -> Result<RawFd, UcxError> {
        let mut fd: c_int = -1;
        // SAFETY: a worker and memory for the result.
        let status = unsafe { (self.library.worker_get_efd)(self.worker, &raw mut fd) };
        self.check("ucp_worker_get_efd", status)?;
        Ok(fd)
    }

    fn connect(&mut self, addresses: &[Option<Vec<u8>>]) -> Result<(), UcxError> {
        for (rank, address) in addresses.iter().enumerate() {
            let endpoint = match address {
                Some(address) => self.endpoint(rank as u32, address)?,
                None => null_mut(),
            };
            self.endpoints.push(endpoint);
        }
        Ok(())
    }

    /// UCX's shared memory cannot report dead peers, so an endpoint without error handling is the second choice.
    fn endpoint(&mut self, rank: u32, address: &[u8]) -> Result<*mut c_void, UcxError> {
        loop {
            let on_error = self.detects_failures.then_some(on_error as library::OnError);
            let to = address.as_ptr().cast();
            let params = EndpointParams::to(to, on_error, self.inbox.cast());
            let mut endpoint = null_mut();
            // SAFETY: a worker, an address made by that rank's UCX, parameters that live until the call returns, and
            // memory for the result; the inbox outlives the worker.
            let status = unsafe {
                (self.library.ep_create)(self.worker, &raw const params, &raw mut endpoint)
            };
            match status {
                OK => return Ok(endpoint),
                UNREACHABLE
                    if self.detects_failures && self.endpoints.iter().all(|e| e.is_null()) =>
                {
                    self.detects_failures = false;
                }
                status => {
                    let tls = std::env::var("UCX_TLS").unwrap_or_else(|_| "unset".to_owned());
                    let reason = self.library.words(status);
                    return Err(UcxError::Unreachable { rank, reason, tls });
                }
            }
        }
    }

    fn send(
        &mut self,
        (to, number): (u32, u64),
        header: &Header,
        bytes: Option<(&Loan, Range<usize>)>,
        how: How,
    ) -> Result<bool, String> {
        let endpoint = self.endpoints.get(to as usize).copied().filter(|e| !e.is_null());
        let endpoint = endpoint.ok_or("there is no way to that rank")?;
        let flags = match how {
            How::Eager => SEND_EAGER,
            How::Rendezvous => SEND_RENDEZVOUS,
        };
        let mut ticket = self.ticket();
        ticket.header = *header;
        let params = RequestParams::send(flags, on_sent, (&raw mut *ticket).cast());
        let slice = bytes.as_ref().map_or(&[][..], |(loan, range)| &loan.bytes()[range.clone()]);
        // SAFETY: an endpoint of this worker; ticket, header and bytes stay where they are until the request is
        // complete, as `Open` keeps them.
        let request = unsafe {
            (self.library.am_send_nbx)(
                endpoint,
                MESSAGE,
                ticket.header.as_ptr().cast(),
                HEADER_LEN,
                slice.as_ptr().cast(),
                slice.len(),
                &raw const params,
            )
        };
        self.begun(
            request,
            Token::Send { to, number },
            bytes.map(|(loan, _)| Bytes::Read(loan.clone())),
            ticket,
        )
    }

    fn fetch(&mut self, number: u64, waiting: &Waiting, mut into: Buffer) -> Result<bool, String> {
        let len = into.len();
        assert_eq!(waiting.len, len, "the target has the length of the message");
        let start = into.slice_mut(0..len).as_mut_ptr();
        let mut ticket = self.ticket();
        let params = RequestParams::fetch(on_fetched, (&raw mut *ticket).cast());
        // SAFETY: a descriptor of this worker that has not been used, and memory of the message's length, which stays
        // in place until the request is complete, as `Open` keeps it.
        let request = unsafe {
            (self.library.am_recv_data_nbx)(
                self.worker,
                waiting.descriptor,
                start.cast(),
                len,
                &raw const params,
            )
        };
        self.begun(request, Token::Fetch { number }, Some(Bytes::Written(into)), ticket)
    }

    fn discard(&self, waiting: &Waiting) {
        // SAFETY: a descriptor of this worker's callback that has not been used: it is used once, by fetch or here.
        unsafe { (self.library.am_data_release)(self.worker, waiting.descriptor) };
    }

    fn ticket(&mut self) -> Box<Ticket> {
        let inbox = self.inbox;
        let fresh = || Box::new(Ticket { inbox, number: 0, header: [0; HEADER_LEN] });
        let mut ticket = self.spare.take().unwrap_or_else(fresh);
        ticket.number = self.next;
        self.next += 1;
        ticket
    }

    /// Handles the return value of a call: complete (no callback follows), an error, or a request.
    fn begun(
        &mut self,
        request: *mut c_void,
        token: Token,
        bytes: Option<Bytes>,
        ticket: Box<Ticket>,
    ) -> Result<bool, String> {
        match of_pointer(request) {
            Ok(Some(_)) => {
                self.open.insert(ticket.number, Open { token, _bytes: bytes, ticket });
                Ok(false)
            }
            Ok(None) => {
                self.spare = Some(ticket);
                Ok(true)
            }
            Err(status) => Err(self.library.words(status)),
        }
    }

    fn progress(&mut self, events: &mut Vec<Event>) -> bool {
        let before = events.len();
        let mut moved = false;
        for _ in 0..STEPS_PER_TURN {
            // SAFETY: a worker; its callbacks write to the inbox, to which there is no reference now.
            if unsafe { (self.library.worker_progress)(self.worker) } == 0 {
                break;
            }
            moved = true;
        }
        self.collect(events);
        moved || events.len() > before
    }

    /// Collects completed requests, then the events of callbacks. This order reports the completion of a send before
    /// the peer's answer to the message.
    fn collect(&mut self, events: &mut Vec<Event>) {
        let library = self.library;
        // SAFETY: callbacks run only inside UCX's calls, and none runs now: this is the only reference.
        let inbox = unsafe { &mut *self.inbox };
        for (number, request, status) in inbox.complete.drain(..) {
            // SAFETY: a request of this worker, freed once, as its callback is called once. No other callback runs
            // inside.
            unsafe { (library.request_free)(request) };
            let Some(Open { token, ticket, .. }) = self.open.remove(&number) else { continue };
            self.spare = Some(ticket);
            let outcome = match status {
                OK => Outcome::Complete,
                CANCELED => Outcome::Cancelled,
                status => Outcome::Failed(library.words(status)),
            };
            events.push(Event::Done { token, outcome });
        }
        events.append(&mut inbox.events);
        for (endpoint, status) in std::mem::take(&mut inbox.broken) {
            if let Some(rank) = self.endpoints.iter().position(|&known| known == endpoint) {
                let reason = self.library.words(status);
                events.push(Event::Broken { rank: rank as u32, reason });
            }
        }
    }

    /// Closes all endpoints, which completes pending operations; afterwards nothing accesses their memory.
    fn end(&mut self, events: &mut Vec<Event>) {
        let mut closing = Vec::new();
        for endpoint in std::mem::take(&mut self.endpoints) {
            // Where UCX does not report dead peers it cannot close by force; destroying the worker does.
            if endpoint.is_null() || !self.detects_failures {
                continue;
            }
            let params = RequestParams::with_flags(CLOSE_FORCE);
            // SAFETY: an endpoint of this worker, closed once.
            let request = unsafe { (self.library.ep_close_nbx)(endpoint, &raw const params) };
            closing.extend(of_pointer(request).ok().flatten());
        }
        let until = Instant::now() + CLOSE_PATIENCE;
        while !(closing.is_empty() && self.open.is_empty()) && Instant::now() < until {
            self.progress(events);
            closing.retain(|&request| {
                // SAFETY: a request of this worker that has not been freed; freed once, when complete.
                let complete =
                    unsafe { (self.library.request_check_status)(request) != IN_PROGRESS };
                if complete {
                    // SAFETY: as above.
                    unsafe { (self.library.request_free)(request) };
                }
                !complete
            });
            if !self.detects_failures {
                break;
            }
        }
        // These descriptors are invalid without the worker.
        for event in &*events {
            if let Event::Waiting { bytes, .. } = event {
                self.discard(bytes);
            }
        }
        self.destroy();
        let cancelled = |open: Open| Event::Done { token: open.token, outcome: Outcome::Cancelled };
        events.extend(self.open.drain().map(|(_, open)| cancelled(open)));
    }

    fn destroy(&mut self) {
        let (worker, context) = (self.worker, self.context);
        (self.worker, self.context) = (null_mut(), null_mut());
        // SAFETY: both were created by `open`, are destroyed once, the worker first, and not used afterwards.
        unsafe {
            if !worker.is_null() {
                (self.library.worker_destroy)(worker);
            }
            if !context.is_null() {
                (self.library.cleanup)(context);
            }
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.destroy();
        // SAFETY: made by `Box::into_raw` and freed once; the worker, whose callbacks have the pointer, is destroyed.
        drop(unsafe { Box::from_raw(self.inbox) });
    }
}

/// Callback: records a received message.
///
/// # Safety
/// Called by UCX with the inbox of the worker that is in progress, and memory as described by the header.
unsafe extern "C" fn on_message(
    inbox: *mut c_void,
    header: *const c_void,
    header_len: usize,
    data: *mut c_void,
    len: usize,
    params: *const ReceiveParams,
) -> Status {
    // SAFETY: the caller of UCX holds the worker's lock and has no reference to the inbox meanwhile.
    let inbox = unsafe { &mut *inbox.cast::<Inbox>() };
    // SAFETY: UCX passes valid parameters.
    let waits = unsafe { (*params).attributes } & RECEIVED_RENDEZVOUS != 0;
    if header_len != HEADER_LEN {
        // Not a message of this program; with this answer UCX drops it, and notifies a sender that waits.
        return OK;
    }
    let mut own = [0; HEADER_LEN];
    // SAFETY: UCX passes that many bytes of header.
    unsafe { header.cast::<u8>().copy_to_nonoverlapping(own.as_mut_ptr(), HEADER_LEN) };
    if waits {
        let bytes = Waiting { descriptor: data, len };
        inbox.events.push(Event::Waiting { header: own, bytes });
        return IN_PROGRESS;
    }
    let bytes = match len {
        0 => Vec::new(),
        // SAFETY: UCX passes that many bytes, valid during this call.
        _ => unsafe { std::slice::from_raw_parts(data.cast::<u8>(), len) }.to_vec(),
    };
    inbox.events.push(Event::Whole { header: own, bytes });
    OK
}

/// Callback: records that a message has been sent, or never will be.
///
/// # Safety
/// Called by UCX once per request with the ticket of its operation, which `Open` keeps.
unsafe extern "C" fn on_sent(request: *mut c_void, status: Status, ticket: *mut c_void) {
    // SAFETY: as above; no other reference exists.
    let Ticket { inbox, number, .. } = unsafe { &*ticket.cast::<Ticket>() };
    // SAFETY: as in `on_message`.
    unsafe { &mut **inbox }.complete.push((*number, request, status));
}

/// Callback: records that a message has been fetched, or never will be.
///
/// # Safety
/// As for `on_sent`.
unsafe extern "C" fn on_fetched(r: *mut c_void, status: Status, _: usize, ticket: *mut c_void) {
    // SAFETY: as above.
    unsafe { on_sent(r, status, ticket) };
}

/// Callback: records that a peer has failed.
///
/// # Safety
/// As for `on_message`.
unsafe extern "C" fn on_error(inbox: *mut c_void, endpoint: *mut c_void, status: Status) {
    // SAFETY: as in `on_message`.
    let inbox = unsafe { &mut *inbox.cast::<Inbox>() };
    inbox.broken.push((endpoint, status));
}

/// Decodes UCX's pointers that may be statuses: null, or one of the last hundred addresses.
fn of_pointer(pointer: *mut c_void) -> Result<Option<*mut c_void>, Status> {
    match pointer as isize {
        0 => Ok(None),
        status @ -100..0 => Err(status as Status),
        _ => Ok(Some(pointer)),
    }
}

const CLOSED: &str = "the group was closed";

/// Maximum number of progress calls before events are processed.
const STEPS_PER_TURN: usize = 8;

/// Maximum time for UCX to release the memory of operations with dead peers.
const CLOSE_PATIENCE: Duration = Duration::from_secs(1);
