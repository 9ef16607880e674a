//! Our messages as AMQP properties, and AMQP properties as our deliveries.
//!
//! Reading is tolerant: brokers, shovels and AMQP 1.0 conversion change integer widths and add headers of their own. What
//! cannot be read is treated as not there.

use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable, ShortString};

use crate::broker::{
    ARRIVES_AT_HEADER, Argument, Delivery, HeaderValue, Headers, Message, PRIORITY_HEADER, Source, TRACEPARENT_HEADER,
    TRACESTATE_HEADER, Target, Token,
};
use crate::task::{Millis, TraceContext};

/// Headers do not span frames, and the connection dies with a frame that is too long.
const LONGEST_HEADERS: usize = 16 * 1024;
const PERSISTENT: u8 = 2;

/// A message ready to go out.
pub(super) struct Outgoing {
    pub(super) exchange: ShortString,
    pub(super) routing_key: ShortString,
    pub(super) properties: BasicProperties,
}

/// Turns `message` into what goes over the wire; an error says what AMQP cannot carry.
pub(super) fn outgoing(namespace: &str, message: &Message) -> Result<Outgoing, String> {
    let (exchange, routing_key) = match &message.target {
        Target::Submit { task_type } => (format!("{namespace}.submit"), task_type.clone()),
        Target::Lane(key) => (String::new(), format!("{namespace}.{}.{}", key.queue, key.lane.as_str())),
        Target::Rung { queue, delay_ms } => (String::new(), format!("{namespace}.{queue}.delay.{delay_ms}")),
        Target::Dead { queue } => (String::new(), format!("{namespace}.{queue}.dead")),
        Target::Event { topic } => (format!("{namespace}.events"), (*topic).to_owned()),
        Target::Reply { queue } => (String::new(), queue.clone()),
    };
    let mut properties = BasicProperties::default()
        .with_delivery_mode(PERSISTENT)
        .with_content_type(message.content_type.into())
        .with_message_id(short("message id", &message.message_id)?);
    if let Some(kind) = message.message_type {
        properties = properties.with_type(kind.into());
    }
    if let Some(id) = &message.correlation_id {
        properties = properties.with_correlation_id(short("correlation id", id)?);
    }
    if !message.headers.is_empty() {
        properties = properties.with_headers(headers(&message.headers));
    }
    Ok(Outgoing {
        exchange: short("exchange name", &exchange)?,
        routing_key: short("routing key", &routing_key)?,
        properties,
    })
}

/// A short string, or what is wrong.
pub(super) fn short(what: &str, text: &str) -> Result<ShortString, String> {
    ShortString::try_new(text).map_err(|_| format!("the {what} is longer than 255 bytes"))
}

/// Queue and exchange arguments.
pub(super) fn arguments(arguments: &[(&'static str, Argument)]) -> FieldTable {
    let mut table = FieldTable::default();
    for (name, value) in arguments {
        let value = match value {
            Argument::Text(text) => AMQPValue::LongString(text.as_str().into()),
            Argument::Number(number) => AMQPValue::LongLongInt(*number),
        };
        table.insert((*name).into(), value);
    }
    table
}

/// Our headers; the text that would burst the frame is cut, on a character boundary, and what comes after it left out.
fn headers(headers: &Headers) -> FieldTable {
    let mut table = FieldTable::default();
    let mut room = LONGEST_HEADERS;
    for (name, value) in headers {
        // A length byte, a type byte, and eight of number or four of length.
        let overhead = name.len() + 10;
        let Some(left) = room.checked_sub(overhead) else { break };
        room = left;
        let value = match value {
            HeaderValue::Number(number) => AMQPValue::LongLongInt(*number),
            HeaderValue::Text(text) => {
                let mut end = text.len().min(room);
                while !text.is_char_boundary(end) {
                    end -= 1;
                }
                room -= end;
                AMQPValue::LongString(text[..end].into())
            }
        };
        table.insert((*name).into(), value);
    }
    table
}

/// A delivery as the port knows it.
pub(super) fn delivery(queue: &str, source: Source, incoming: lapin::message::Delivery, token: Token) -> Delivery {
    let properties = &incoming.properties;
    let headers = properties.headers().as_ref();
    let number = |name: &str| headers.and_then(|headers| headers.inner().get(name)).and_then(integer);
    let routing_key = headers.and_then(first_routing_key).unwrap_or_else(|| incoming.routing_key.as_str().to_owned());
    Delivery {
        queue: queue.to_owned(),
        source,
        message_type: properties.kind().as_ref().map(|kind| kind.as_str().to_owned()),
        message_id: properties.message_id().as_ref().map(|id| id.as_str().to_owned()),
        routing_key,
        arrives_at: number(ARRIVES_AT_HEADER),
        priority: number(PRIORITY_HEADER),
        trace: headers.and_then(trace),
        redelivered: incoming.redelivered,
        returns: number("x-delivery-count").unwrap_or(0),
        body: incoming.data.into(),
        token,
    }
}

/// An integer of any width, or text that is one.
fn integer(value: &AMQPValue) -> Option<Millis> {
    match value {
        AMQPValue::ShortShortInt(n) => Some(i64::from(*n)),
        AMQPValue::ShortShortUInt(n) => Some(i64::from(*n)),
        AMQPValue::ShortInt(n) => Some(i64::from(*n)),
        AMQPValue::ShortUInt(n) => Some(i64::from(*n)),
        AMQPValue::LongInt(n) => Some(i64::from(*n)),
        AMQPValue::LongUInt(n) => Some(i64::from(*n)),
        AMQPValue::LongLongInt(n) => Some(*n),
        AMQPValue::Timestamp(n) => i64::try_from(*n).ok(),
        AMQPValue::LongString(text) => std::str::from_utf8(text.as_bytes()).ok()?.trim().parse().ok(),
        AMQPValue::ShortString(text) => text.as_str().trim().parse().ok(),
        _ => None,
    }
}

/// The span that sent a message; a header that is no text is as good as not there.
fn trace(headers: &FieldTable) -> Option<TraceContext> {
    let text = |name: &str| match headers.inner().get(name)? {
        AMQPValue::LongString(text) => std::str::from_utf8(text.as_bytes()).ok(),
        AMQPValue::ShortString(text) => Some(text.as_str()),
        _ => None,
    };
    TraceContext::read(text(TRACEPARENT_HEADER)?, text(TRACESTATE_HEADER))
}

/// The key with which a dead-lettered message was first published. The broker puts its newest death first, so the oldest is
/// last; our own publishes never carry an older history, because every one is a new message.
fn first_routing_key(headers: &FieldTable) -> Option<String> {
    let AMQPValue::FieldArray(deaths) = headers.inner().get("x-death")? else { return None };
    let AMQPValue::FieldTable(first) = deaths.as_slice().last()? else { return None };
    let AMQPValue::FieldArray(keys) = first.inner().get("routing-keys")? else { return None };
    match keys.as_slice().first()? {
        AMQPValue::LongString(key) => Some(key.to_string()),
        AMQPValue::ShortString(key) => Some(key.as_str().to_owned()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_arrival_time_is_read_from_any_integer_and_from_text() {
        let read = [
            AMQPValue::LongLongInt(7),
            AMQPValue::LongInt(7),
            AMQPValue::LongUInt(7),
            AMQPValue::ShortShortUInt(7),
            AMQPValue::Timestamp(7),
            AMQPValue::LongString("7".into()),
            AMQPValue::LongString(" 7 ".into()),
            AMQPValue::ShortString("7".into()),
        ];
        for value in read {
            assert_eq!(integer(&value), Some(7), "{value:?}");
        }
        let unread = [
            AMQPValue::Void,
            AMQPValue::Boolean(true),
            AMQPValue::Double(7.0),
            AMQPValue::LongString("7.0".into()),
            AMQPValue::LongString(vec![0xff, 0xfe].into()),
            AMQPValue::Timestamp(u64::MAX),
        ];
        for value in unread {
            assert_eq!(integer(&value), None, "{value:?}");
        }
    }

    #[test]
    fn headers_are_cut_at_sixteen_kilobytes_on_a_character_boundary() {
        let long = "ü".repeat(20_000);
        let table = headers(&vec![
            ("redeliver-error", HeaderValue::Text(long.clone())),
            ("redeliver-code", HeaderValue::Text(long)),
        ]);
        let AMQPValue::LongString(text) = &table.inner()["redeliver-error"] else { panic!("no text") };
        assert!(text.len() <= LONGEST_HEADERS && text.len() > LONGEST_HEADERS - 100);
        assert!(std::str::from_utf8(text.as_bytes()).is_ok());
        assert!(!table.contains_key("redeliver-code"));
    }
}
