//! What surrounds every call: its connection is busy until the call ends, its incomplete message counts, and a shared
//! reply becomes its body.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http_body::{Frame, SizeHint};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::header::USER_AGENT;
use tonic::codegen::http::{Extensions, Request, Response};
use tonic::codegen::{BoxFuture, Bytes, Service};
use tonic::server::NamedService;

use super::authorisation::Peer;
use super::connections::{Call, Connections};
use super::incomplete::Incomplete;
use super::status_cache::{Encoded, ReplyBody};
use crate::version;

/// The service, with its connections.
#[derive(Debug, Clone)]
pub(super) struct CallLayer<S> {
    service: S,
    connections: Connections,
    incomplete: Incomplete,
}

impl<S> CallLayer<S> {
    pub fn new(service: S, connections: Connections) -> CallLayer<S> {
        CallLayer { service, connections, incomplete: Incomplete::default() }
    }
}

impl<S: NamedService> NamedService for CallLayer<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> Service<Request<Body>> for CallLayer<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Response<Body>, Infallible>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.service.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let agent = request.headers().get(USER_AGENT).and_then(|agent| agent.to_str().ok());
        if let Err(problem) = version::check(&version::SPOKEN, agent) {
            return Box::pin(async { Ok(Status::unimplemented(problem).into_http()) });
        }
        let call = self.connections.begin_call(peer(request.extensions()));
        if let Some(line) = call.line() {
            request.extensions_mut().insert(line);
        }
        let incomplete = &self.incomplete;
        let answer = self.service.call(request.map(|body| incomplete.metered(body)));
        Box::pin(async move {
            let mut response = answer.await?;
            if let Some(reply) = response.extensions_mut().remove::<Arc<Encoded>>() {
                *response.body_mut() = Body::new(ReplyBody::new(reply));
            }
            Ok(response.map(|body| Body::new(CallBody { body, _call: call })))
        })
    }
}

fn peer(extensions: &Extensions) -> Option<SocketAddr> {
    extensions.get::<Peer>().map(|peer| peer.address)
}

/// The body of a response. Its call is in progress until the body has been sent.
struct CallBody {
    body: Body,
    _call: Call,
}

impl http_body::Body for CallBody {
    type Data = Bytes;
    type Error = tonic::Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, tonic::Status>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
