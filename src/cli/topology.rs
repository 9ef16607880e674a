//! `redeliver topology …`: the broker's objects against the configuration.

use std::io::Write as _;

use clap::Subcommand;
use redeliver::broker::{Broker, Difference, Management, QueueRole, Topology, definitions};
use redeliver::store::Urgency;
use redeliver::task::{Answer, Command};
use serde_json::json;

use super::confirm::Consent;
use super::context::{Context, Missing, open_store};
use super::exit::{self, Exit};
use super::output::{Entry, Listing};

/// Compare, declare and remove the exchanges and queues in RabbitMQ
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Show what the broker lacks or has differently
    #[command(after_help = "Examples:
  redeliver topology plan
  redeliver topology plan -o json")]
    Plan,
    /// Declare what is missing (a worker does the same when it starts)
    #[command(after_help = "Examples:
  redeliver topology apply
  redeliver topology apply --dry-run")]
    Apply {
        #[command(flatten)]
        consent: Consent,
    },
    /// Print it as RabbitMQ definitions, for those who declare it themselves
    #[command(after_help = "Examples:
  redeliver topology export > definitions.json && rabbitmqctl import_definitions definitions.json
  redeliver topology export --users

Asks nobody: the file's topology, in the vhost of broker.url. With --users also redeliver-worker, redeliver-producer and
redeliver-console with the least rights that work; nobody can log in as one before `rabbitmqctl change_password`.")]
    Export {
        /// Also users with their rights, without passwords
        #[arg(long)]
        users: bool,
    },
    /// Remove every exchange and queue of this configuration
    #[command(after_help = "Examples:
  redeliver topology delete --dry-run
  redeliver topology delete --yes --reason 'moving to another vhost'

Refuses while a queue holds messages, unless --force. Tasks live in the store and are not touched.")]
    Delete {
        /// Even queues that hold messages; the store's alarms bring the tasks back
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        consent: Consent,
    },
}

impl Verb {
    /// Refuses before anything is opened.
    ///
    /// # Errors
    /// [`Exit::Refused`] without consent.
    pub fn can_run(&self) -> anyhow::Result<()> {
        match self {
            Verb::Delete { consent, .. } => consent.can_be_had(),
            Verb::Plan | Verb::Apply { .. } | Verb::Export { .. } => Ok(()),
        }
    }
}

/// Runs the verb.
///
/// # Errors
/// With an exit code in the chain where one fits.
pub async fn run(verb: Verb, context: &Context) -> anyhow::Result<Exit> {
    context.needs_broker()?;
    if context.config().broker.is_embedded() {
        context.say("the embedded broker has no topology");
        context.printer.list(&Listing::new(&COLUMNS))?;
        return Ok(Exit::Done);
    }
    if let Verb::Export { users } = verb {
        let topology = context.config().topology();
        let config = &context.config().broker;
        let places = Management::places(&config.urls, &[]).map_err(|reason| exit::error(Exit::Usage, reason))?;
        let vhost = places.first().map_or("/", |at| at.vhost.as_str());
        let text = serde_json::to_string_pretty(&definitions(&topology, vhost, users))?;
        // A file for another program, whatever -o says.
        writeln!(std::io::stdout(), "{text}")?;
        return Ok(Exit::Done);
    }
    // Workers have the delay queues of the rules in force, which the store may know better than the file.
    let (config, source) = context.in_force().await?;
    let topology = config.topology();
    if source != context.own_source() {
        context.say(format!("delay queues as in {source}, which is in force"));
    }
    let broker = context.broker().await?;
    let exit = context.bound("the broker", verb_with(verb, context, &*broker, &topology)).await?;
    broker.close().await;
    exit
}

async fn verb_with(verb: Verb, context: &Context, broker: &dyn Broker, topology: &Topology) -> anyhow::Result<Exit> {
    match verb {
        // Answered before any broker was asked.
        Verb::Export { .. } => Ok(Exit::Done),
        Verb::Plan => plan(context, broker, topology).await,
        Verb::Apply { consent } if consent.dry_run => plan(context, broker, topology).await,
        Verb::Apply { .. } => {
            remember_losses(context, broker, topology).await?;
            broker.declare(topology).await?;
            let (queues, exchanges) = (topology.queues.len(), topology.exchanges.len());
            context.say(format!("{queues} queues and {exchanges} exchanges are as configured"));
            Ok(Exit::Done)
        }
        Verb::Delete { consent, .. } if consent.dry_run => {
            let mut listing = Listing::new(&["queue", "ready"]);
            for depth in broker.depths(topology).await?.into_iter().filter(|depth| depth.ready.is_some()) {
                let ready = depth.ready.unwrap_or(0);
                listing.push(Entry {
                    name: depth.name.clone(),
                    cells: vec![depth.name.clone(), ready.to_string()],
                    json: json!({ "name": depth.name, "ready": ready }),
                });
            }
            context.printer.list(&listing)?;
            Ok(Exit::Done)
        }
        Verb::Delete { force, consent } => {
            let queues = topology.queues.len();
            consent.ask(&format!("Remove {queues} queues and their exchanges from the broker?"))?;
            tracing::info!(queues, force, reason = consent.reason.as_deref().unwrap_or(""), "removing the topology");
            broker.delete(topology, force).await?;
            context.say("removed");
            Ok(Exit::Done)
        }
    }
}

const COLUMNS: [&str; 5] = ["object", "difference", "argument", "found", "wanted"];

async fn plan(context: &Context, broker: &dyn Broker, topology: &Topology) -> anyhow::Result<Exit> {
    let mut listing = Listing::new(&COLUMNS);
    for difference in broker.plan(topology).await? {
        listing.push(entry(&difference));
    }
    context.printer.list(&listing)?;
    Ok(Exit::Done)
}

fn entry(difference: &Difference) -> Entry {
    let (object, kind, argument, found, wanted) = match difference {
        Difference::Missing(name) => (name.clone(), "missing", String::new(), String::new(), String::new()),
        Difference::Conflict(conflict) => (
            conflict.queue.clone(),
            "conflict",
            conflict.argument.clone(),
            conflict.found.clone(),
            conflict.wanted.clone(),
        ),
        Difference::Extra { name, ready } => {
            (name.clone(), "extra", String::new(), format!("{ready} messages"), String::new())
        }
    };
    let ready = match difference {
        Difference::Extra { ready, .. } => Some(*ready),
        Difference::Missing(_) | Difference::Conflict(_) => None,
    };
    let or_null = |text: &str| if text.is_empty() { None } else { Some(text.to_owned()) };
    let json = json!({
        "object": object,
        "difference": kind,
        "argument": or_null(&argument),
        "found": or_null(&found).filter(|_| ready.is_none()),
        "wanted": or_null(&wanted),
        "ready": ready,
    });
    Entry { name: object.clone(), cells: vec![object, kind.into(), argument, found, wanted], json }
}

/// Writes down which lanes, rungs and DLQs are not there, before they are declared: a queue that is re-declared first would hide that
/// its messages are lost. A store that does not exist yet has nothing to lose.
async fn remember_losses(context: &Context, broker: &dyn Broker, topology: &Topology) -> anyhow::Result<()> {
    let spots = topology.spots();
    let missing = broker.missing(topology, &spots).await?;
    let absent: Vec<String> = broker.plan(topology).await?.into_iter().filter_map(missing_name).collect();
    let dlqs = topology.queues.iter().filter(|spec| spec.role == QueueRole::Dead && absent.contains(&spec.name));
    let mut commands: Vec<Command> = missing.into_iter().map(|spot| Command::Missing { spot }).collect();
    commands.extend(dlqs.map(|spec| Command::DirtyDlq { queue: spec.queue.clone() }));
    if commands.is_empty() {
        return Ok(());
    }
    let store = match open_store(context.config(), Missing::Refused).await {
        Ok(store) => store,
        // Unreachable: do not declare, or the loss is hidden. Not there: nothing waits.
        Err(error) if exit::of(&error) == Exit::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    for answer in store.apply(Urgency::Normal, commands).await? {
        if let Answer::Unprocessable { message } = answer {
            anyhow::bail!("the store cannot note what is missing: {message}");
        }
    }
    store.close().await;
    Ok(())
}

fn missing_name(difference: Difference) -> Option<String> {
    match difference {
        Difference::Missing(name) => Some(name),
        Difference::Conflict(_) | Difference::Extra { .. } => None,
    }
}
