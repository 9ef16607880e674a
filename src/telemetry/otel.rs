//! Spans over OTLP, for those who collect them. Nothing else of this program knows OpenTelemetry.
//!
//! Configured by the variables that OpenTelemetry names (`OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_SERVICE_NAME`, `OTEL_TRACES_SAMPLER`, …) and
//! by nothing of ours. A collector that is away costs spans and nothing else. A program that has a tracer provider of its own and uses
//! the library gets the spans there.

use std::time::Duration;

use async_trait::async_trait;
use opentelemetry::global::{self, BoxedSpan};
use opentelemetry::trace::{
    Span as _, SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState, Tracer as _,
};
use opentelemetry::{Context, KeyValue};
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{SpanExporter, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;

use crate::task::{Outcome, Task, TraceContext};

/// The name of the tracer, and of the service where nobody has named it.
const NAME: &str = "redeliver";
/// Without one of these nobody wants spans.
const ENDPOINTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"];

/// A collector's answer says how many spans it refused; what is longer than this is none.
const LONGEST_ANSWER: usize = 64 * 1024;
/// How long one export may take: the default that OpenTelemetry names.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(10);

/// One attempt.
#[derive(Debug)]
pub(super) struct Span(BoxedSpan);

impl Span {
    pub(super) fn start(task: &Task) -> Span {
        let (spec, stamp, tracer) = (&task.spec, task.stamp(), global::tracer(NAME));
        let builder = tracer.span_builder("attempt").with_kind(SpanKind::Consumer);
        // A trace of its own, whatever span this thread may be in.
        let mut span = tracer.build_with_context(builder, &Context::new());
        // Mostly nobody collects spans: what describes this one costs more than the rest of it.
        if span.is_recording() {
            span.update_name(format!("attempt {}", spec.task_type));
            if let Some(asked_by) = spec.trace.as_ref().and_then(asked_by) {
                span.add_link(asked_by, Vec::new());
            }
            span.set_attributes([
                KeyValue::new("redeliver.task.id", spec.id.clone()),
                KeyValue::new("redeliver.task.type", spec.task_type.clone()),
                KeyValue::new("redeliver.queue", task.queue().to_owned()),
                KeyValue::new("redeliver.generation", stamp.generation),
                KeyValue::new("redeliver.retry_count", stamp.retry_count),
            ]);
        }
        Span(span)
    }

    /// What to send on; `None` where nobody collects spans.
    pub(super) fn context(&self) -> Option<TraceContext> {
        let context = self.0.span_context();
        if !context.is_valid() {
            return None;
        }
        let flags = context.trace_flags().to_u8();
        TraceContext::read(&format!("00-{}-{}-{flags:02x}", context.trace_id(), context.span_id()), None)
    }

    pub(super) fn end(mut self, outcome: &Outcome) {
        match outcome {
            Outcome::Success { .. } => self.0.set_status(Status::Ok),
            Outcome::Failure { failure, .. } => {
                self.0.set_attribute(KeyValue::new("error.type", failure.class.clone()));
                if let Some(status) = failure.http_status {
                    self.0.set_attribute(KeyValue::new("http.response.status_code", i64::from(status)));
                }
                self.0.set_status(Status::error(failure.message.clone()));
            }
        }
        self.0.end();
    }
}

/// The span that a task came with, as a link.
fn asked_by(trace: &TraceContext) -> Option<SpanContext> {
    let mut parts = trace.traceparent().split('-').skip(1);
    let (trace_id, span_id, flags) = (parts.next()?, parts.next()?, parts.next()?);
    let state = trace.tracestate().and_then(|state| state.parse::<TraceState>().ok()).unwrap_or_default();
    Some(SpanContext::new(
        TraceId::from_hex(trace_id).ok()?,
        SpanId::from_hex(span_id).ok()?,
        TraceFlags::new(u8::from_str_radix(flags, 16).ok()?),
        true,
        state,
    ))
}

/// Sends spans while it lives.
#[derive(Debug)]
pub struct Exporting(SdkTracerProvider);

impl Exporting {
    /// Starts sending, if the environment says where to. To be called inside the runtime whose threads send.
    ///
    /// # Errors
    /// What of the environment cannot be meant.
    pub fn start() -> Result<Option<Exporting>, String> {
        let given = |name: &str| std::env::var(name).is_ok_and(|value| !value.trim().is_empty());
        let says =
            |name: &str, word: &str| std::env::var(name).is_ok_and(|value| value.trim().eq_ignore_ascii_case(word));
        if !ENDPOINTS.into_iter().any(given)
            || says("OTEL_SDK_DISABLED", "true")
            || says("OTEL_TRACES_EXPORTER", "none")
        {
            return Ok(None);
        }
        let client = reqwest::Client::builder().timeout(EXPORT_TIMEOUT).build();
        let client = client.map_err(|error| format!("no HTTP client for spans: {error}"))?;
        let client = Client { client, runtime: tokio::runtime::Handle::current() };
        let exporter = SpanExporter::builder().with_http().with_http_client(client).build();
        let exporter = exporter.map_err(|error| format!("OTEL_EXPORTER_OTLP_ENDPOINT: {error}"))?;
        let named = given("OTEL_SERVICE_NAME")
            || std::env::var("OTEL_RESOURCE_ATTRIBUTES").is_ok_and(|text| text.contains("service.name="));
        let resource = if named { Resource::builder() } else { Resource::builder().with_service_name(NAME) };
        let provider =
            SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource.build()).build();
        global::set_tracer_provider(provider.clone());
        Ok(Some(Exporting(provider)))
    }

    /// Sends what is left, and ends.
    pub async fn stop(self) {
        // It waits for its own thread, which needs the runtime's.
        match tokio::task::spawn_blocking(move || self.0.shutdown()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "the last spans were not sent"),
            Err(error) => tracing::debug!(%error, "the last spans were not sent"),
        }
    }
}

/// The HTTP client of this program, for an exporter whose own thread is no part of the runtime.
#[derive(Debug)]
struct Client {
    client: reqwest::Client,
    runtime: tokio::runtime::Handle,
}

#[async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let client = self.client.clone();
        let sent = self.runtime.spawn(async move {
            let mut answer = client.execute(request.try_into()?).await?;
            let (status, headers) = (answer.status(), std::mem::take(answer.headers_mut()));
            let mut body = Vec::new();
            while let Some(chunk) = answer.chunk().await? {
                body.extend_from_slice(&chunk[..chunk.len().min(LONGEST_ANSWER - body.len())]);
                if body.len() == LONGEST_ANSWER {
                    break;
                }
            }
            let mut response = Response::builder().status(status).body(Bytes::from(body))?;
            *response.headers_mut() = headers;
            Ok::<_, HttpError>(response)
        });
        sent.await?
    }
}
