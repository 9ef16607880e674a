//! A config file that cannot be meant is refused with every mistake at once, each with file, line, subject, what was expected
//! and the way out.

use std::collections::BTreeMap;

use redeliver::config::{self, FlagValue, Loaded, Request, Secrets};

/// Loads `text` as `redeliver.toml` with these variables and flags.
fn load_with(
    text: &str,
    variables: &[(&str, &str)],
    flags: &[(&'static str, &'static str, &str)],
) -> Result<Loaded, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("redeliver.toml");
    std::fs::write(&path, text).unwrap();
    let variables: BTreeMap<&str, &str> = variables.iter().copied().collect();
    let environment = |name: &str| variables.get(name).map(|value| (*value).to_owned());
    let request = Request {
        file: Some(path.clone()),
        environment: &environment,
        flags: flags.iter().map(|(key, flag, value)| FlagValue { key, flag, value: (*value).to_owned() }).collect(),
        secrets: Secrets::Required,
    };
    let folder_prefix = format!("{}/", folder.path().display());
    config::load(&request).map_err(|error| error.to_string().replace(&folder_prefix, ""))
}

fn load(text: &str) -> Result<Loaded, String> {
    load_with(text, &[], &[])
}

#[test]
fn bad_files_are_refused_with_every_mistake_line_and_way_out() {
    let cases: &[(&str, &[&str])] = &[
        // Structure: unknown keys, near misses, keys of later versions, wrong types; all at once.
        (
            "[broker]\nnamespce = 'x'\n[worker]\nretry_share = 1\nconcurrency = 'many'\nfoo = 1\n[alert]\nport = 1\n",
            &[
                "redeliver.toml:2: [broker]: unknown key namespce; did you mean namespace?",
                "redeliver.toml:4: [worker]: retry_share: expected a number more than 0 and less than 1, found 1",
                "redeliver.toml:5: [worker]: concurrency: expected a whole number, found a text",
                "redeliver.toml:6: [worker]: unknown key foo; known here: concurrency, prefetch, retry_share, lease, \
                 shutdown_grace, max_body, no_route_hold",
                "redeliver.toml:7: alert is not supported by this version; leave it out",
            ],
        ),
        ("[worker\nlease = 1", &["redeliver.toml:1: unclosed table, expected `]`"]),
        ("[worker]\nlease = '1m'\nlease = '2m'", &["redeliver.toml:3: duplicate key"]),
        ("worker = 5", &["redeliver.toml:1: expected a table, found integer `5`"]),
        // Values.
        (
            "[broker]\nconfirm_timeout = '10'\nheartbeat = '1.5s'\nnamespace = 'a b'\n[worker]\nlease = '0s'\nprefetch = 0\n\
             concurrency = 0\nmax_body = '1 parsec'\n",
            &[
                "redeliver.toml:2: [broker]: confirm_timeout: expected a duration such as \"10s\", \"1h30m\" or \"500ms\" (units ms, \
                 s, m, h, d), found \"10\"",
                "redeliver.toml:3: [broker]: heartbeat: expected whole seconds from 1s to 65535s, found 1s500ms",
                "redeliver.toml:4: [broker]: namespace: expected 1 to 100 letters, digits, `.`, `_` or `-`, found \"a b\"",
                "redeliver.toml:6: [worker]: lease: expected at least 100ms, found 0s",
                "redeliver.toml:7: [worker]: prefetch: expected a whole number from 1 to 65535, found 0, which RabbitMQ takes for \
                 unlimited",
                "redeliver.toml:8: [worker]: concurrency: expected a whole number from 1 to 100000, found 0",
                "redeliver.toml:9: [worker]: max_body: expected a size such as \"1MiB\", \"512KiB\" or a number of bytes, found \"1 \
                 parsec\"",
            ],
        ),
        (
            "[scheduler]\npatience = '2m'\nmax_patience = '1m'\n",
            &["redeliver.toml:3: [scheduler]: max_patience: expected at least patience (2m), found 1m"],
        ),
        // URLs.
        (
            "broker.url = 'http://guest:geheim@localhost'\nstore.url = 'mysql://me:geheim@db/x'\n",
            &[
                "redeliver.toml:1: [broker]: url: expected amqp://user:password@host:5672/vhost or amqps://…, found the scheme \"http\"",
                "redeliver.toml:2: [store]: url: expected sqlite://path/to/redeliver.db or postgres://user:password@host:5432/database, found the scheme \"mysql\"",
            ],
        ),
        (
            "broker.url = ['amqp://a', 'embedded']\nstore.url = 'sqlite://:memory:'\n",
            &[
                "redeliver.toml:1: [broker]: url: \"embedded\" cannot stand in a list with others",
                "redeliver.toml:2: [store]: url: expected sqlite://path/to/redeliver.db or postgres://user:password@host:5432/database; a store in memory would lose every task at \
                 exit",
            ],
        ),
        // Queues.
        (
            "[[queue]]\nname = 'a.b'\ntypes = ['x.#']\n[[queue]]\nname = 'ship'\ntypes = ['x.y', 'z..']\nconcurrency = 0\n[[queue]]\n\
             name = 'ship'\n[[queue]]\ntypes = []\n",
            &[
                "redeliver.toml:2: queue \"a.b\": name: expected 1 to 100 characters a-z, 0-9, `_` or `-`",
                "redeliver.toml:6: queue \"ship\": types: \"x.y\" overlaps \"x.#\" of queue \"a.b\", so one task would run twice; make \
                 one of them narrower",
                "redeliver.toml:6: queue \"ship\": types: \"z..\" has an empty word; words are separated by single dots",
                "redeliver.toml:7: queue \"ship\": concurrency: expected a whole number from 1 to 100000, found 0",
                "redeliver.toml:8: queue \"ship\": expected types, such as types = [\"order.ship.#\"]; without them no task belongs to it",
                "redeliver.toml:9: queue \"ship\": name: there is a queue of this name above; merge the two or rename one",
                "redeliver.toml:10: queue 4: expected a name, such as name = \"shipping\"",
                "redeliver.toml:11: queue 4: types: expected at least one, such as types = [\"order.ship.#\"]",
            ],
        ),
        // A part that was refused is not complained about twice.
        ("[[queue]]\nname = 5\n", &["redeliver.toml:2: queue 1: name: expected a text in quotes, found integer `5`"]),
        // Routes.
        (
            "[[route]]\ntype = 'order.#'\n[route.http]\nurl = 'ftp://x'\nmethod = 'post'\nheaders = { authorization = 'env:NO_TOKEN', \
             x-retry-count = '1' }\ncode = 'error'\nexpect = ['/a~2']\ntiemout = '5s'\n",
            &[
                "redeliver.toml:4: route \"order.#\": http.url: expected http://host/path or https://host/path, found the scheme \
                 \"ftp\"",
                "redeliver.toml:5: route \"order.#\": http.method: expected one of GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS, found \
                 \"post\"",
                "redeliver.toml:6: route \"order.#\": http.headers.authorization: the environment variable NO_TOKEN is not set (nor \
                 NO_TOKEN_FILE)",
                "redeliver.toml:6: route \"order.#\": http.headers.x-retry-count: is set by redeliver itself; leave it out",
                "redeliver.toml:7: route \"order.#\": http.code: expected a JSON pointer such as \"/error/code\" (a ~ is written ~0), \
                 found \"error\"",
                "redeliver.toml:8: route \"order.#\": http.expect: expected a JSON pointer such as \"/error/code\" (a ~ is written ~0), \
                 found \"/a~2\"",
                "redeliver.toml:9: route \"order.#\": unknown key http.tiemout; did you mean timeout?",
            ],
        ),
        (
            "[[route]]\ncommand = { program = '', env = ['a b'] }\n[[route]]\ntype = 'a.*b'\nhttp = {}\ncommand = {}\n[[route]]\ntype = \
             'a'\n",
            &[
                "redeliver.toml:1: route 1: expected a type, such as type = \"order.#\" (\"#\" is every type)",
                "redeliver.toml:2: route 1: command.program: expected the name or path of a program, found nothing",
                "redeliver.toml:2: route 1: command.env: expected NAME (inherited) or NAME=value",
                "redeliver.toml:4: route \"a.*b\": type: has '*' inside the word \"*b\"; `*` and `#` stand alone between dots, in \
                 patterns only",
                "redeliver.toml:6: route \"a.*b\": expected either http or command, found both; make it two routes",
                "redeliver.toml:7: route \"a\": expected who runs it: http = { url = \"…\" } or command = { program = \"…\" }",
            ],
        ),
        // Policies.
        (
            "[[policy]]\nname = 'vip'\nmax_retries = -1\nbackoff = { steps = ['abc', '0s'] }\nretry_after = { mode = 'exactly' }\n\
             permanent = { codes = [1.5], http_status = [99], stderr = ['('] }\nhours = {}\n[[policy]]\nname = 'vip'\nbackoff = { \
             exponential = { jitter = 2 } }\n[[policy]]\nname = 'default'\nbackoff = { steps = [] }\ndeadline = '0s'\n",
            &[
                "redeliver.toml:3: policy \"vip\": max_retries: expected a whole number from 0 to 1000, found -1",
                "redeliver.toml:4: policy \"vip\": backoff.steps: expected a duration such as \"10s\", \"1h30m\" or \"500ms\" (units \
                 ms, s, m, h, d), found \"abc\"",
                "redeliver.toml:4: policy \"vip\": backoff.steps: expected more than 0s and at most 49d, found 0s",
                "redeliver.toml:5: policy \"vip\": retry_after.mode: expected one of `exact`, `floor`, `ignore`, found `exactly`",
                "redeliver.toml:6: policy \"vip\": permanent.codes: expected a code such as \"rate_limit\" or 1000001, found floating \
                 point `1.5`",
                "redeliver.toml:6: policy \"vip\": permanent.http_status: expected a number from 100 to 599, found 99",
                "redeliver.toml:6: policy \"vip\": permanent.stderr: expected a regular expression: unclosed group",
                "redeliver.toml:7: policy \"vip\": hours: expected from, a time such as from = \"06:00\"",
                "redeliver.toml:7: policy \"vip\": hours: expected to, a time such as to = \"06:00\"",
                "redeliver.toml:9: policy \"vip\": name: there is a policy of this name above; rename one",
                "redeliver.toml:10: policy \"vip\": backoff.exponential.jitter: expected a number from 0 to 1, found 2",
                "redeliver.toml:12: policy \"default\": name: \"default\" is the built-in last policy's; to replace it, take another \
                 name with type = \"#\"",
                "redeliver.toml:13: policy \"default\": backoff.steps: expected at least one delay, such as steps = [\"15m\", \"30m\", \
                 \"45m\"]",
                "redeliver.toml:14: policy \"default\": deadline: expected more than 0s and at most 36500d, found 0s",
            ],
        ),
        (
            "[[policy]]\nname = 'vip'\nbackoff = { exponential = { base = '10s',\nmax = '5s', multiplier = 0.5 } }\n[[policy]]\nname = \
             'slow'\nbackoff = { exponential = { base = '10m', multiplier = 'x' } }\n[[policy]]\nname = 'both'\nbackoff = { fixed = '1s', \
             exponential = {}, steps = ['-5s'] }\n",
            &[
                "redeliver.toml:4: policy \"vip\": max (5s) is below base (10s)",
                "redeliver.toml:4: policy \"vip\": backoff.exponential.multiplier: expected a number from 1 to 1000, found 0.5",
                "redeliver.toml:7: policy \"slow\": max (1m, the default) is below base (10m)",
                "redeliver.toml:7: policy \"slow\": backoff.exponential.multiplier: expected a number, found a text",
                "redeliver.toml:10: policy \"both\": backoff: expected one of steps, fixed and exponential, found several",
                "redeliver.toml:10: policy \"both\": backoff.steps: expected a duration such as \"10s\", \"1h30m\" or \"500ms\" (units \
                 ms, s, m, h, d), found \"-5s\"",
            ],
        ),
        (
            "[[policy]]\nname = 'a'\nhours = { from = '25:00', to = '06:00', tz = 'Mars/Phobos' }\n[[policy]]\nname = 'b'\nhours = { from = \
             '24:00', to = '6:00' }\n[[policy]]\nname = 'c'\nhours = { from = '06:00', to = '06:00' }\n[[policy]]\nname = 'd'\nhours = \
             'night'\n",
            &[
                "redeliver.toml:3: policy \"a\": hours.from: expected a time from \"00:00\" to \"23:59\", found \"25:00\"",
                "redeliver.toml:3: policy \"a\": hours.tz: expected an IANA time zone such as \"Asia/Shanghai\" or \"UTC\", found \
                 \"Mars/Phobos\"",
                "redeliver.toml:6: policy \"b\": hours.from: expected a time from \"00:00\" to \"23:59\", found \"24:00\"",
                "redeliver.toml:6: policy \"b\": hours.to: expected a time from \"00:00\" to \"24:00\", found \"6:00\"",
                "redeliver.toml:9: policy \"c\": hours: expected two different times; for the whole day from = \"00:00\", to = \"24:00\"",
                "redeliver.toml:12: policy \"d\": hours: expected a table, found a text",
            ],
        ),
    ];
    refused(cases);
}

fn refused(cases: &[(&str, &[&str])]) {
    for (text, expected) in cases {
        let found = load(text).expect_err(text);
        assert_eq!(found.lines().collect::<Vec<_>>(), *expected, "for:\n{text}");
    }
}

#[test]
fn bad_overrides_variants_and_fallbacks_are_refused_all_at_once() {
    refused(&[
        (
            "[[policy]]\nname = 'a'\nvariants = [{ name = 'x', weight = 0 }, { name = 'x', weight = 0 }]\n[[policy]]\nname = 'b'\nvariants = \
             [{ weight = -1 },\n{ name = '', backoff = { fixed = '0s' } }]\n[[policy]]\nname = 'c'\nvariants = []\n",
            &[
                "redeliver.toml:3: policy \"a\": variants: the weights sum to 0; give at least one of them a weight",
                "redeliver.toml:3: policy \"a\": variants: there are two of the name \"x\"; rename one",
                "redeliver.toml:6: policy \"b\": variants: expected a name, such as name = \"fast\"",
                "redeliver.toml:6: policy \"b\": variants..weight: expected a whole number from 0 to 1000000, found -1",
                "redeliver.toml:7: policy \"b\": variants: name: expected 1 to 100 characters",
                "redeliver.toml:7: policy \"b\": variants..backoff.fixed: expected more than 0s and at most 49d, found 0s",
                "redeliver.toml:10: policy \"c\": variants: expected at least one, or leave the key out",
            ],
        ),
        (
            "[[policy]]\nname = 'a'\non = [{},\n{ class = '', max_retries = -1 },\n{ http_status = 99, backoff = { steps = [] } },\n{ code = \
             4001 }]\nfallback = ['cache', 'default',\n'queue', 'cache', 'nothing']\ncache_max_age = '0s'\nreplay_after = ['1h', \
             '0s']\ncritical = 'yes'\n",
            &[
                "redeliver.toml:3: policy \"a\": on: expected class, code or http_status, such as { class = \"rate_limited\", backoff = { \
                 fixed = \"1m\" } }",
                "redeliver.toml:3: policy \"a\": on: expected what is different then: backoff = { fixed = \"1m\" } or max_retries = 1",
                "redeliver.toml:4: policy \"a\": on: expected class, code or http_status, such as { class = \"rate_limited\", backoff = { \
                 fixed = \"1m\" } }",
                "redeliver.toml:4: policy \"a\": on.class: expected the name of a failure class, found nothing",
                "redeliver.toml:4: policy \"a\": on.max_retries: expected a whole number from 0 to 1000, found -1",
                "redeliver.toml:5: policy \"a\": on.http_status: expected a whole number from 100 to 599, found 99",
                "redeliver.toml:5: policy \"a\": on.backoff.steps: expected at least one delay, such as steps = [\"15m\", \"30m\", \
                 \"45m\"]",
                "redeliver.toml:6: policy \"a\": on: expected what is different then: backoff = { fixed = \"1m\" } or max_retries = 1",
                "redeliver.toml:7: policy \"a\": fallback: default needs a default_result, such as default_result = { answer = \"\" }",
                "redeliver.toml:8: policy \"a\": fallback: cache stands twice",
                "redeliver.toml:8: policy \"a\": fallback: expected one of `cache`, `default`, `queue`, found `nothing`",
                "redeliver.toml:9: policy \"a\": cache_max_age: expected more than 0s and at most 36500d, found 0s",
                "redeliver.toml:10: policy \"a\": replay_after: expected more than 0s and at most 36500d, found 0s",
                "redeliver.toml:11: policy \"a\": critical: expected true or false, found a text",
            ],
        ),
    ]);
}

#[test]
fn bad_limits_breakers_and_caps_are_refused_all_at_once() {
    refused(&[
        (
            "[[limit]]\nname = 'a'\nper = []\nmax_ratio = { ratio = 0.2, floor = '5/h' }\n",
            &[
                "redeliver.toml:4: limit \"a\": max_ratio.floor: is less than one retry in the window, and without first attempts none would \
               ever start; make the window longer or the floor higher",
            ],
        ),
        (
            "[[limit]]\nname = 'a'\nper = ['shop', 'label',\n'labels.shop', 'type', 'type']\nrate = '0/min'\n[[limit]]\nname = 'a'\nrate = \
             '5/fortnight'\nburst = 0\n[[limit]]\nper = []\n[[limit]]\nname = 'r'\nrate = 5\ncalls = true\nburst = 2\n[[limit]]\nname = \
             'q'\nmax_ratio = { ratio = 0, window = '0s', floor = '0/min' }\ncalls = true\nburst = 2\n[[limit]]\nname = 'z'\nrate = \
             '1/s'\nmax_ratio = {}\n",
            &[
                "redeliver.toml:3: limit \"a\": per: expected type, queue, route or label.<name>, found \"shop\"",
                "redeliver.toml:3: limit \"a\": per: expected type, queue, route or label.<name>, found \"label\"",
                "redeliver.toml:4: limit \"a\": per: expected type, queue, route or label.<name>, found \"labels.shop\"",
                "redeliver.toml:4: limit \"a\": per: type stands twice",
                "redeliver.toml:5: limit \"a\": rate: expected a rate such as \"5/min\", at least 1 (units s, min, h, day, or a duration as \
                 in \"5/10s\"), found \"0/min\"",
                "redeliver.toml:7: limit \"a\": name: there is a limit of this name above; rename one",
                "redeliver.toml:8: limit \"a\": rate: expected a rate such as \"5/min\", at least 1 (units s, min, h, day, or a duration as \
                 in \"5/10s\"), found \"5/fortnight\"",
                "redeliver.toml:10: limit 3: expected a name, such as name = \"per shop\"",
                "redeliver.toml:10: limit 3: expected a rate, such as rate = \"5/min\", or max_ratio = { ratio = 0.2 }",
                "redeliver.toml:14: limit \"r\": rate: expected a rate such as \"5/min\", at least 1 (units s, min, h, day, or a duration as \
                 in \"5/10s\"), found integer `5`",
                "redeliver.toml:19: limit \"q\": max_ratio.ratio: expected a number from 0.001 to 10, found 0",
                "redeliver.toml:19: limit \"q\": max_ratio.window: expected more than 0s and at most 36500d, found 0s",
                "redeliver.toml:19: limit \"q\": max_ratio.floor: expected a rate such as \"5/min\", at least 1 (units s, min, h, day, or a \
                 duration as in \"5/10s\"), found \"0/min\"",
                "redeliver.toml:20: limit \"q\": calls: max_ratio compares retries with first attempts; leave calls out or use rate",
                "redeliver.toml:21: limit \"q\": burst: goes with rate only; leave it out beside max_ratio",
                "redeliver.toml:25: limit \"z\": expected either rate or max_ratio, found both; make it two limits",
            ],
        ),
        (
            "[[breaker]]\nname = 'a'\nper = 'type'\n[[breaker]]\nname = 'a'\nconsecutive = 0\nopen_for = '1m'\nopen_for_max = '5s'\nprobes = \
             0\nwhen_open = 'wait'\nignore = ['']\nfailure_rate = { ratio = 50 }\n[[breaker]]\nname = 'b'\n",
            &[
                "redeliver.toml:3: breaker \"a\": per: expected a list in [ ], found a text",
                "redeliver.toml:5: breaker \"a\": name: there is a breaker of this name above; rename one",
                "redeliver.toml:6: breaker \"a\": consecutive: expected a whole number from 1 to 1000000, found 0",
                "redeliver.toml:8: breaker \"a\": open_for_max (5s) is below open_for (1m)",
                "redeliver.toml:9: breaker \"a\": probes: expected a whole number from 1 to 100000, found 0",
                "redeliver.toml:10: breaker \"a\": when_open: expected one of `park`, `dead_letter`, `fallback`, found `wait`",
                "redeliver.toml:11: breaker \"a\": ignore: expected the name of a failure class, found nothing",
                "redeliver.toml:12: breaker \"a\": failure_rate.ratio: expected a number from 0.001 to 1, found 50",
                "redeliver.toml:13: breaker \"b\": expected when it opens: consecutive_same = 3, consecutive = 5 or failure_rate = { ratio = \
                 0.5, min = 20 }",
            ],
        ),
        (
            "[[route]]\ntype = 'a'\ncommand = { program = 'x' }\nconcurrency = 0\n[[route]]\ntype = 'b'\ncommand = { program = 'x' \
             }\nconcurrency = { per = 'shop' }\n[[route]]\ntype = 'c'\ncommand = { program = 'x' }\nconcurrency = { per = ['type'], max = 0, \
             mox = 1 }\n[[route]]\ntype = 'd'\ncommand = { program = 'x' }\nconcurrency = '2'\n",
            &[
                "redeliver.toml:4: route \"a\": concurrency: expected a whole number from 1 to 100000, found 0",
                "redeliver.toml:8: route \"b\": concurrency: expected max, such as { per = \"label.shop\", max = 2 }",
                "redeliver.toml:8: route \"b\": per: expected type, queue, route or label.<name>, found \"shop\"",
                "redeliver.toml:12: route \"c\": concurrency.max: expected a whole number from 1 to 100000, found 0",
                "redeliver.toml:12: route \"c\": unknown key concurrency.mox; did you mean max?",
                "redeliver.toml:16: route \"d\": concurrency: expected a whole number, or a table such as { per = \"label.shop\", max = 2 }, \
                 found a text",
            ],
        ),
    ]);
}

#[test]
fn a_seventeenth_rung_is_refused_where_it_is_asked_for() {
    let policy = |name: &str, from: u32, to: u32| {
        let steps: Vec<String> = (from..to).map(|n| format!("'{n}s'")).collect();
        format!("[[policy]]\nname = '{name}'\ntype = '{name}'\nbackoff = {{ steps = [{}] }}\n", steps.join(", "))
    };
    // 13 of its own and the three built-in ones are 16.
    load(&policy("a", 1, 14)).unwrap();
    let error = load(&format!("{}{}", policy("a", 1, 14), policy("b", 13, 15))).unwrap_err();
    assert_eq!(
        error,
        "redeliver.toml:8: policy \"b\": backoff: with it the policies name 17 different delays, each a queue in the broker; expected at \
         most 16: use the same delays in several policies"
    );
    // Variants and overrides count too, where they are written.
    let more = "[[policy]]\nname = 'v'\nvariants = [{ name = 'x', backoff = { fixed = '1s' } },\n{ name = 'y', backoff = { fixed = '98s' } \
                }]\n[[policy]]\nname = 'o'\ntype = 'o'\non = [{ class = 'x', backoff = { fixed = '99s' } }]\n";
    let error = load(&format!("{}{}", policy("a", 1, 14), more.replacen("name = 'v'", "name = 'v'\ntype = 'v'", 1)))
        .unwrap_err();
    assert!(error.starts_with("redeliver.toml:9: policy \"v\": backoff: with it the policies name 17"), "{error}");
    // A rule for everything hides the built-in one, whose rungs then are not needed.
    load(&format!(
        "{}{}[[policy]]\nname = 'all'\nbackoff = {{ fixed = '1s' }}\n",
        policy("a", 1, 14),
        policy("b", 13, 17)
    ))
    .unwrap();
}

#[test]
fn flags_win_over_environment_over_file_over_default() {
    let file = "[worker]\nconcurrency = 3\nprefetch = 4\nlease = '5s'\n";
    let variables =
        [("REDELIVER_WORKER_CONCURRENCY", "30"), ("REDELIVER_WORKER_PREFETCH", "40"), ("REDELIVER_STORE_URL", "")];
    let flags = [("worker.concurrency", "--concurrency", "300")];
    let loaded = load_with(file, &variables, &flags).unwrap();
    let worker = &loaded.config.worker;
    assert_eq!((worker.concurrency, worker.prefetch, worker.lease.as_secs()), (300, 40, 5));
    let source = |key: &str| loaded.effective.iter().find(|value| value.key == key).unwrap().source;
    assert_eq!(
        ["worker.concurrency", "worker.prefetch", "worker.lease", "worker.max_body", "store.url"].map(source),
        ["flag", "env", "file", "default", "default"]
    );
}

#[test]
fn bad_variables_and_flags_are_named() {
    let variables = [
        ("REDELIVER_WORKER_PREFETCH", "0"),
        ("REDELIVER_BROKER_URL", "amqp://me:geheim@"),
        ("REDELIVER_WORKER_LEASE", "5"),
    ];
    let flags = [("worker.concurrency", "--concurrency", "x")];
    let error = load_with("[worker]\nmax_body = 0", &variables, &flags).unwrap_err();
    assert!(!error.contains("geheim"), "{error}");
    let subjects: Vec<&str> = error.lines().map(|line| line.split(": ").next().unwrap()).collect();
    assert_eq!(
        subjects,
        [
            "REDELIVER_BROKER_URL",
            "--concurrency",
            "REDELIVER_WORKER_PREFETCH",
            "REDELIVER_WORKER_LEASE",
            "redeliver.toml:2"
        ]
    );
}

#[test]
fn secrets_come_from_files_too_and_are_never_shown() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("url");
    std::fs::write(&file, "amqp://me:geheim@host\n").unwrap();
    let path = file.to_str().unwrap();
    let route = "[[route]]\ntype = '#'\nhttp = { url = 'http://x', headers = { authorization = 'env:TOKEN', plain = 'geheim' } }\n";
    let loaded = load_with(route, &[("REDELIVER_BROKER_URL_FILE", path), ("TOKEN_FILE", path)], &[]).unwrap();
    assert_eq!(loaded.config.broker.urls, ["amqp://me:geheim@host"]);
    let shown = format!("{:?} {:?}", loaded.effective, loaded.config);
    assert!(!shown.contains("geheim"), "{shown}");
    assert!(shown.contains("amqp://me:***@host") && shown.contains("env:TOKEN"));
    let both =
        load_with("", &[("REDELIVER_BROKER_URL_FILE", path), ("REDELIVER_BROKER_URL", "amqp://x")], &[]).unwrap_err();
    assert_eq!(both, "REDELIVER_BROKER_URL_FILE: REDELIVER_BROKER_URL is set too; unset one of them");
}

#[test]
fn a_named_file_must_be_there_and_none_at_all_means_defaults() {
    let nowhere = |_: &str| Some("/nonexistent".to_owned()).filter(|_| false);
    let request = |file| Request { file, environment: &nowhere, flags: Vec::new(), secrets: Secrets::Required };
    let error = config::load(&request(Some("/nonexistent/redeliver.toml".into()))).unwrap_err();
    assert_eq!(error.to_string(), "config file /nonexistent/redeliver.toml: No such file or directory (os error 2)");
    let defaults = config::Config::default();
    let loaded = load("").unwrap().config;
    assert_eq!(format!("{defaults:?}"), format!("{loaded:?}"), "Config::default is what an empty file means");
    assert_eq!(defaults.broker.urls, loaded.broker.urls);
    assert_eq!(loaded.settings(), redeliver::task::Settings::default());
    assert_eq!(loaded.policies.rungs().into_iter().collect::<Vec<_>>(), [900_000, 1_800_000, 2_700_000]);
}

fn sample() -> String {
    std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/redeliver.sample.toml")).unwrap()
}

#[test]
fn the_sample_file_is_valid_and_its_defaults_are_the_defaults() {
    let loaded = load_with(&sample(), &[("THIRD_PARTY_TOKEN", "x")], &[]).unwrap().config;
    let defaults = config::Config::default();
    assert_eq!(format!("{:?}", loaded.worker), format!("{:?}", defaults.worker));
    assert_eq!(format!("{:?}", loaded.scheduler), format!("{:?}", defaults.scheduler));
    let console = config::ConsoleConfig { hosts: Vec::new(), masked: Vec::new(), ..loaded.console };
    assert_eq!(console, defaults.console);
    assert_eq!((loaded.store.url, loaded.broker.urls), (defaults.store.url, defaults.broker.urls));
    assert_eq!(
        (loaded.broker.heartbeat, loaded.broker.confirm_timeout),
        (defaults.broker.heartbeat, defaults.broker.confirm_timeout)
    );
}

#[test]
fn every_key_of_the_schema_is_in_the_sample() {
    let schema = config::schema();
    let sample = sample();
    let mut names = Vec::new();
    collect_properties(&schema, &mut names);
    assert!(names.len() > 40, "{names:?}");
    for name in names {
        // A word of its own, as a key or as the name of a section.
        let there = sample.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').any(|word| word == name);
        assert!(there, "{name} is missing in deploy/redeliver.sample.toml");
    }
}

fn collect_properties(schema: &serde_json::Value, names: &mut Vec<String>) {
    match schema {
        serde_json::Value::Object(object) => {
            if let Some(serde_json::Value::Object(properties)) = object.get("properties") {
                names.extend(properties.keys().cloned());
            }
            object.values().for_each(|value| collect_properties(value, names));
        }
        serde_json::Value::Array(items) => items.iter().for_each(|value| collect_properties(value, names)),
        _ => {}
    }
}
