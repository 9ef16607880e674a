//! What a worker is to do, made from a configuration.

use std::sync::Arc;

use thiserror::Error;

use crate::broker::Topology;
use crate::config::{Config, EventsConfig, QueueConfig, RouteKind, SchedulerConfig, WorkerConfig};
use crate::gate::Gates;
use crate::handler::command::{CommandHandler, CommandRouteError};
use crate::handler::http::{HttpHandler, HttpRouteError};
use crate::handler::{Caps, Handler, Route, Webhook, WebhookHandler};
use crate::policy::{Policies, TopicPattern};
use crate::task::Settings;
use crate::telemetry::alert::ALERT_TYPE;

use super::rules::RuleSet;

/// What a worker is to do.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Retry rules.
    pub policies: Policies,
    /// What can stop a due task.
    pub gates: Arc<Gates>,
    /// Who runs which type; first match wins.
    pub routes: Vec<Route>,
    /// Every queue of the installation, in order.
    pub queues: Vec<QueueConfig>,
    /// The queues this worker consumes; all of them when empty.
    pub serve: Vec<String>,
    /// `[worker]`
    pub worker: WorkerConfig,
    /// `[scheduler]`
    pub scheduler: SchedulerConfig,
    /// The times that transitions use; the store was opened with the same.
    pub settings: Settings,
    /// Every broker object.
    pub topology: Topology,
    /// What is kept of an attempt at most.
    pub caps: Caps,
    /// What other services are told.
    pub events: EventsConfig,
    /// Who is told when something is wrong.
    pub webhooks: Arc<Vec<Webhook>>,
}

/// A `[[route]]` whose handler cannot be made.
#[derive(Debug, Error)]
pub enum RouteError {
    /// An HTTP route.
    #[error("route {task_type:?}: {source}")]
    Http {
        /// Its type pattern.
        task_type: TopicPattern,
        /// What is wrong.
        source: HttpRouteError,
    },
    /// The webhooks.
    #[error("webhooks: {0}")]
    Webhooks(String),
    /// A command route.
    #[error("route {task_type:?}: {source}")]
    Command {
        /// Its type pattern.
        task_type: TopicPattern,
        /// What is wrong.
        source: CommandRouteError,
    },
}

impl Plan {
    /// The plan of a configuration with these routes instead of the configuration's: a library user's own handlers.
    pub fn with_routes(config: &Config, routes: Vec<Route>) -> Plan {
        let RuleSet { policies, gates, routes, webhooks } = RuleSet::with_routes(config, routes);
        Plan {
            policies,
            gates,
            routes,
            queues: config.queues.clone(),
            serve: Vec::new(),
            worker: config.worker.clone(),
            scheduler: config.scheduler.clone(),
            settings: config.settings(),
            topology: config.topology(),
            caps: Plan::caps(config),
            events: config.events,
            webhooks,
        }
    }

    /// The plan of a configuration.
    ///
    /// # Errors
    /// When a route's handler cannot be made: a CA file that cannot be read, a proxy that is no URL.
    pub fn new(config: &Config) -> Result<Plan, RouteError> {
        let routes = make_routes(config, Plan::caps(config))?;
        Ok(Plan::with_routes(config, routes))
    }

    fn caps(config: &Config) -> Caps {
        Caps { body: config.worker.max_body, ..Caps::default() }
    }
}

/// The handlers of routes.
pub(super) fn make_routes(config: &Config, caps: Caps) -> Result<Vec<Route>, RouteError> {
    let mut routes = Vec::with_capacity(config.routes.len() + 1);
    if !config.webhooks.is_empty() {
        let handler = WebhookHandler::new(&config.webhooks).map_err(RouteError::Webhooks)?;
        let task_type = TopicPattern::new(ALERT_TYPE).map_err(|error| RouteError::Webhooks(error.to_string()))?;
        routes.push(Route { task_type, handler: Arc::new(handler) });
    }
    for route in &config.routes {
        let task_type = route.task_type.clone();
        let handler: Arc<dyn Handler> = match &route.kind {
            RouteKind::Http(http) => match HttpHandler::new(http.clone(), caps) {
                Ok(handler) => Arc::new(handler),
                Err(source) => return Err(RouteError::Http { task_type, source }),
            },
            RouteKind::Command(command) => match CommandHandler::new(command.clone(), caps) {
                Ok(handler) => Arc::new(handler),
                Err(source) => return Err(RouteError::Command { task_type, source }),
            },
        };
        routes.push(Route { task_type, handler });
    }
    Ok(routes)
}
