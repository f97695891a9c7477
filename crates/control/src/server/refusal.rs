//! Refusals as gRPC says them.

use tonic::Status;

use crate::decide::Refusal;
use crate::engine::Failure;

/// The status of a request without effect.
pub(super) fn failed(failure: Failure) -> Status {
    match failure {
        Failure::Refused(Refusal::Invalid(text)) => Status::invalid_argument(text),
        Failure::Refused(Refusal::Unknown(text)) => Status::not_found(text),
        Failure::Refused(Refusal::State(text)) => Status::failed_precondition(text),
        Failure::Refused(Refusal::Taken(text)) => Status::already_exists(text),
        Failure::Store(_) => Status::internal(failure.to_string()),
        Failure::Over(_) => Status::unavailable(failure.to_string()),
    }
}
