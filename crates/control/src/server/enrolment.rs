//! The authority as a server, for the time in which new machines join, and the machines' side.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use netsum_identity::{
    Authority, Enrolment, Issued, JoinToken, Joining, REPLY_MAX, REQUEST_MAX, enrolment_name,
    explain,
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;

use crate::connection::Secured;
use crate::error::ControlError;

/// Serves an authority until it is dropped. It has the authority's key in memory; a controller has not.
pub struct EnrolmentServer {
    enrolment: Arc<Enrolment>,
    address: SocketAddr,
    attempts: Receiver<Attempt>,
    runtime: Option<Runtime>,
}

/// An attempt to join.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// The machine.
    pub from: SocketAddr,
    /// The identity that it got, or why it got none, as a sentence.
    pub outcome: Result<String, String>,
}

impl EnrolmentServer {
    /// Serves the authority in a folder; certificates are valid for `lifetime`. Errors name the folder or the address.
    pub fn start(
        authority: &Path,
        listen: SocketAddr,
        lifetime: Duration,
    ) -> Result<EnrolmentServer, ControlError> {
        let enrolment = Arc::new(Enrolment::new(Authority::open(authority)?, lifetime)?);
        let runtime = runtime()?;
        let listener = runtime.block_on(super::listen(listen))?;
        let address = listener.local_addr().map_err(|e| super::not_listening(listen, &e))?;
        let (report, attempts) = sync_channel(ATTEMPTS_QUEUED);
        runtime.spawn(serve(listener, enrolment.clone(), report));
        Ok(EnrolmentServer { enrolment, address, attempts, runtime: Some(runtime) })
    }

    /// Listening address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// How many tokens can still be used.
    pub fn open_tokens(&self) -> Result<usize, ControlError> {
        Ok(self.enrolment.open_tokens()?)
    }

    /// The next attempt, if there is one within `patience`. A flood of attempts is not reported in full.
    pub fn next(&self, patience: Duration) -> Option<Attempt> {
        self.attempts.recv_timeout(patience).ok()
    }
}

impl Drop for EnrolmentServer {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(STOP);
        }
    }
}

/// Gets the certificate of a token from its authority, and writes it and its key into `folder`, which must have none.
/// The private key is drawn here.
pub fn join(token: &JoinToken, folder: &Path) -> Result<Issued, ControlError> {
    let failed =
        |reason: String| ControlError::Enrolment { address: token.address().to_owned(), reason };
    if folder.join("identity.pem").exists() {
        let folder = folder.display();
        return Err(failed(format!("{folder} has credentials already; name another folder")));
    }
    let joining = Joining::new(token.clone())?;
    let asking = async { timeout(EXCHANGE, ask(token.address(), &joining)).await };
    let exchanged = runtime()?.block_on(asking);
    let late = |_| failed(format!("no answer within {} s; {IS_SERVED}", EXCHANGE.as_secs()));
    let reply = exchanged.map_err(late)?.map_err(failed)?;
    let issued = joining.accept(&reply).map_err(|error| failed(error.to_string()))?;
    issued.save(folder)?;
    Ok(issued)
}

async fn ask(address: &str, joining: &Joining) -> Result<Vec<u8>, String> {
    let socket = TcpStream::connect(address).await;
    let socket = socket.map_err(|error| format!("{error}; {IS_SERVED}"))?;
    let client = joining.client().map_err(|error| error.to_string())?;
    let connector = TlsConnector::from(Arc::new(client));
    let stream = connector.connect(enrolment_name(), socket).await;
    let mut stream = stream.map_err(|error| explain(&error))?;
    // The secret goes to a server that has been verified only.
    let request = joining.request().map_err(|error| error.to_string())?;
    write(&mut stream, &request).await.map_err(|error| error.to_string())?;
    read(&mut stream, REPLY_MAX).await.map_err(|error| error.to_string())
}

/// The exchanges in progress. One address gets half of the places, so that no address can shut out the others. Nobody is
/// evicted: a place stays taken while its secret is penalised.
#[derive(Debug, Clone)]
struct Places {
    most: usize,
    open: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

/// An exchange in progress.
#[derive(Debug)]
struct Place {
    address: IpAddr,
    open: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

impl Places {
    fn new(most: usize) -> Places {
        Places { most, open: Arc::default() }
    }

    /// A place, if there is one, until the result is dropped.
    fn begin(&self, address: IpAddr) -> Option<Place> {
        let mut open = lock(&self.open);
        let (all, own) = (open.values().sum::<usize>(), open.get(&address).copied().unwrap_or(0));
        if all >= self.most || own >= self.most / 2 {
            return None;
        }
        open.insert(address, own + 1);
        Some(Place { address, open: self.open.clone() })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = lock(&self.open);
        let others = open.get(&self.address).map_or(0, |own| own - 1);
        if others == 0 {
            open.remove(&self.address);
        } else {
            open.insert(self.address, others);
        }
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn serve(listener: TcpListener, enrolment: Arc<Enrolment>, report: SyncSender<Attempt>) {
    let places = Places::new(PLACES);
    loop {
        let Ok((stream, from)) = listener.accept().await else {
            sleep(PAUSE).await;
            continue;
        };
        let Some(place) = places.begin(from.ip()) else { continue };
        let (enrolment, report) = (enrolment.clone(), report.clone());
        tokio::spawn(async move {
            let late = |_| Err(format!("no request within {} s", EXCHANGE.as_secs()));
            let exchanged = timeout(EXCHANGE, exchange(stream, &enrolment)).await;
            let outcome = exchanged.unwrap_or_else(late);
            // Nobody may be listening, or too slowly.
            let _ = report.try_send(Attempt { from, outcome });
            drop(place);
        });
    }
}

/// One request and its reply; returns the identity that was granted.
async fn exchange(stream: TcpStream, enrolment: &Arc<Enrolment>) -> Result<String, String> {
    let mut stream = Secured::accept(stream, enrolment.server()).await?;
    let request = read(&mut stream, REQUEST_MAX).await.map_err(|error| explain(&error))?;
    let enrolment = enrolment.clone();
    let answer = tokio::task::spawn_blocking(move || enrolment.answer(&request)).await;
    let answer = answer.map_err(|error| error.to_string())?;
    if answer.outcome.is_err() {
        // The place stays taken meanwhile, so secrets cannot be tried any faster.
        sleep(PENALTY).await;
    }
    let sent = write(&mut stream, &answer.reply).await;
    let identity = answer.outcome?.to_string();
    sent.map_err(|error| format!("{identity} did not receive its certificate: {error}"))?;
    let _ = stream.shutdown().await;
    Ok(identity)
}

/// Writes a message after its length.
async fn write(stream: &mut (impl AsyncWrite + Unpin), message: &[u8]) -> std::io::Result<()> {
    stream.write_u32(message.len() as u32).await?;
    stream.write_all(message).await?;
    stream.flush().await
}

async fn read(stream: &mut (impl AsyncRead + Unpin), most: usize) -> std::io::Result<Vec<u8>> {
    let len = stream.read_u32().await? as usize;
    if len > most {
        return Err(std::io::Error::other(format!("a message of {len} bytes; {most} are allowed")));
    }
    // Grows as bytes arrive: the length is the other side's.
    let mut message = Vec::new();
    stream.take(len as u64).read_to_end(&mut message).await?;
    match message.len() == len {
        true => Ok(message),
        false => Err(std::io::ErrorKind::UnexpectedEof.into()),
    }
}

fn runtime() -> Result<Runtime, ControlError> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("netsum-enrolment")
        .enable_all()
        .build()
        .map_err(|source| ControlError::System { what: "cannot start a runtime", source })
}

const IS_SERVED: &str = "does `netsum ca serve` run there?";
/// Machines that join at the same time; one address gets half.
const PLACES: usize = 16;
/// A whole exchange, handshake included.
const EXCHANGE: Duration = Duration::from_secs(10);
/// Delay of a refusal: sixteen guesses a second, of 2¹²⁸ secrets.
const PENALTY: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(100);
const STOP: Duration = Duration::from_secs(1);
const ATTEMPTS_QUEUED: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_does_not_take_all_places() {
        let places = Places::new(4);
        let [one, other] = ["192.0.2.1", "192.0.2.2"].map(|address| address.parse().unwrap());
        let mut held: Vec<_> = (0..2).map(|_| places.begin(one).unwrap()).collect();
        assert!(places.begin(one).is_none());
        held.extend((0..2).map(|_| places.begin(other).unwrap()));
        assert!(places.begin("192.0.2.3".parse().unwrap()).is_none());
        held.remove(0);
        assert!(places.begin(one).is_some());
        held.clear();
        assert!(lock(&places.open).is_empty());
    }
}
