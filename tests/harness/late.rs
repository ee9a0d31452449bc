//! Bodies of answers; those of watches may arrive later than they were sent.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame};
use tokio::sync::mpsc;
use tokio::time::{Instant, Sleep};
use tower::BoxError;

use super::Fault;

/// A part of an answer.
type Part = Result<Frame<Bytes>, BoxError>;

/// The body of an answer on its way to the host.
pub(crate) enum Passing<B> {
    /// As it comes.
    AtOnce(Pin<Box<B>>),
    /// As late as the fault says when it comes.
    Late {
        /// Parts, each with the moment at which it arrives.
        parts: mpsc::UnboundedReceiver<(Instant, Part)>,
        /// The next one.
        next: Option<(Pin<Box<Sleep>>, Part)>,
    },
}

impl<B> Passing<B>
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    pub(super) fn at_once(body: B) -> Self {
        Self::AtOnce(Box::pin(body))
    }

    pub(super) fn watched(body: B, fault: Arc<Fault>) -> Self {
        let (sender, parts) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            let mut body = Box::pin(body);
            loop {
                let next = tokio::select! {
                    () = sender.closed() => return,
                    next = std::future::poll_fn(|context| body.as_mut().poll_frame(context)) => next,
                };
                let Some(part) = next else { return };
                // A watch that ends because its reader is gone is no error of anybody.
                drop(sender.send((Instant::now() + fault.lateness(), part.map_err(Into::into))));
            }
        });
        Self::Late { parts, next: None }
    }
}

impl<B> Body for Passing<B>
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Part>> {
        match self.get_mut() {
            Self::AtOnce(body) => body.as_mut().poll_frame(context).map_err(Into::into),
            Self::Late { parts, next } => {
                if next.is_none() {
                    let Some((due, part)) = ready!(parts.poll_recv(context)) else {
                        return Poll::Ready(None);
                    };
                    *next = Some((Box::pin(tokio::time::sleep_until(due)), part));
                }
                if let Some((sleep, _)) = next {
                    ready!(sleep.as_mut().poll(context));
                }
                Poll::Ready(next.take().map(|(_, part)| part))
            }
        }
    }
}
