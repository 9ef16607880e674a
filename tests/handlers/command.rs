//! Commands: what they are given, what their word means (C5), what they leave behind, and that nothing of them is left over.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use redeliver::handler::command::{CommandHandler, CommandRouteError};
use redeliver::handler::{Caps, CommandRoute, Handler, Report};
use redeliver::task::{AttachmentBody, Outcome, Verdict};
use tokio::io::AsyncReadExt;

use super::support::{TRACEPARENT, TRACESTATE, attempt, failed, succeeded, traced_attempt};

fn shell(script: &str) -> CommandRoute {
    CommandRoute {
        program: "/bin/sh".into(),
        args: vec!["-c".into(), script.into()],
        timeout: Duration::from_secs(30),
        env: Vec::new(),
    }
}

async fn run(route: CommandRoute) -> Report {
    CommandHandler::new(route, Caps::default()).unwrap().run(attempt(r#"{"order": 5}"#)).await
}

async fn sh(script: &str) -> Report {
    run(shell(script)).await
}

/// A pipe on disk: opening it for reading waits for a writer, and its end comes when every process that holds it has ended.
/// So tests learn of the end of processes without asking again and again.
struct Fifo {
    path: PathBuf,
    _folder: tempfile::TempDir,
}

impl Fifo {
    fn new() -> Fifo {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("fifo");
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        Fifo { path, _folder: folder }
    }

    fn name(&self) -> &str {
        self.path.to_str().unwrap()
    }

    fn open(&self) -> tokio::net::unix::pipe::Receiver {
        tokio::net::unix::pipe::OpenOptions::new().open_receiver(&self.path).unwrap()
    }
}

/// Waits until `wanted` has been written.
async fn says(pipe: &mut tokio::net::unix::pipe::Receiver, wanted: &str) {
    let mut found = String::new();
    let mut buffer = [0; 64];
    while !found.contains(wanted) {
        pipe.readable().await.unwrap();
        match pipe.try_read(&mut buffer) {
            Ok(0) => tokio::task::yield_now().await,
            Ok(length) => found.push_str(&String::from_utf8_lossy(&buffer[..length])),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => panic!("{error}"),
        }
    }
}

#[tokio::test]
async fn a_command_gets_its_payload_and_a_clean_environment() {
    let mut route = shell("cat; echo; env | sort; pwd >/dev/null; ls -ld \"$REDELIVER_ATTEMPT_DIR\"");
    route.env =
        vec!["LANG=C.UTF-8".into(), "REDELIVER_TASK_ID=forged".into(), "HOME".into(), "NOT_SET_ANYWHERE".into()];
    let result = succeeded(&run(route).await.outcome).unwrap();
    let text = String::from_utf8(result.body).unwrap();
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some(r#"{"order": 5}"#));
    // What a shell itself adds does not count.
    let names: Vec<&str> = lines.clone().filter_map(|l| l.split_once('=')).map(|(name, _)| name).collect();
    let own = ["PWD", "SHLVL", "_", "OLDPWD"];
    let names: Vec<&str> = names.into_iter().filter(|name| !own.contains(name)).collect();
    let mut expected = vec!["HOME", "LANG", "PATH"];
    expected.extend(["ATTEMPT_DIR", "IDEMPOTENCY_KEY", "RETRY_COUNT", "TASK_ID", "TASK_TYPE"]);
    let bare: Vec<&str> = names.iter().map(|name| name.trim_start_matches("REDELIVER_")).collect();
    assert_eq!(bare, expected, "{text}");
    for line in [
        "REDELIVER_TASK_ID=task-1",
        "REDELIVER_TASK_TYPE=order.ship",
        "REDELIVER_RETRY_COUNT=2",
        "REDELIVER_IDEMPOTENCY_KEY=key-1",
    ] {
        assert!(lines.clone().any(|found| found == line), "{line} in {text}");
    }
    assert!(text.lines().last().unwrap().starts_with("drwx------"), "{text}");
}

#[tokio::test]
async fn a_command_gets_the_trace_of_its_attempt() {
    let mut route = shell("env | grep ^TRACE | sort");
    route.env = vec!["TRACEPARENT=forged".into()];
    let handler = CommandHandler::new(route, Caps::default()).unwrap();
    let result = succeeded(&handler.run(traced_attempt("{}")).await.outcome).unwrap();
    let expected = format!("TRACEPARENT={TRACEPARENT}\nTRACESTATE={TRACESTATE}\n");
    assert_eq!(String::from_utf8(result.body).unwrap(), expected);
}

#[tokio::test]
async fn a_payload_that_is_not_read_is_no_trouble() {
    let handler = CommandHandler::new(shell("exec 0<&-; echo done"), Caps::default()).unwrap();
    let payload = format!("\"{}\"", "x".repeat(1 << 20));
    let result = succeeded(&handler.run(attempt(&payload)).await.outcome).unwrap();
    assert_eq!(result.body, b"done\n");
    let all = CommandHandler::new(shell("wc -c"), Caps::default()).unwrap();
    let result = succeeded(&all.run(attempt(&payload)).await.outcome).unwrap();
    assert_eq!(String::from_utf8(result.body).unwrap().trim(), (payload.len()).to_string());
}

#[tokio::test]
async fn output_is_the_result_of_a_command_that_says_nothing_else() {
    assert_eq!(succeeded(&sh("exit 0").await.outcome), None);
    assert_eq!(succeeded(&sh("echo; echo ' '").await.outcome), None);
    let typed = |script: &'static str| async move { succeeded(&sh(script).await.outcome).unwrap().media_type };
    assert_eq!(typed("echo hello").await, "text/plain; charset=utf-8");
    assert_eq!(typed("echo '{\"a\": 1}'").await, "application/json");
    assert_eq!(typed("printf '\\377'").await, "application/octet-stream");
}

#[tokio::test]
async fn exit_codes_mean_what_the_requirements_say() {
    let table = [
        (1, "failed", Verdict::ByPolicy),
        (2, "failed", Verdict::ByPolicy),
        (63, "failed", Verdict::ByPolicy),
        (64, "failed", Verdict::Dead),
        (74, "failed", Verdict::Dead),
        (75, "transient", Verdict::Retry),
        (76, "failed", Verdict::Dead),
        (78, "failed", Verdict::Dead),
        (79, "failed", Verdict::ByPolicy),
        (126, "not_runnable", Verdict::ByPolicy),
        (127, "not_runnable", Verdict::ByPolicy),
        (255, "failed", Verdict::ByPolicy),
    ];
    for (code, class, verdict) in table {
        let report = sh(&format!("echo trace >&2; echo 'Error: no  luck' >&2; exit {code}")).await;
        let (failure, said, _) = failed(&report.outcome);
        assert_eq!((failure.class.as_str(), said), (class, verdict), "{code}");
        assert_eq!(failure.message, format!("exit code {code}: Error: no luck"));
        assert_eq!(failure.code, Some(format!("exit {code}")));
        assert_eq!(failure.stack.as_deref(), Some("trace\nError: no  luck\n"));
    }
    let (failure, verdict, _) = failed(&sh("kill -9 $$").await.outcome);
    assert_eq!(
        (failure.class.as_str(), failure.message.as_str(), verdict),
        ("failed", "killed by signal 9", Verdict::ByPolicy)
    );
    assert_eq!(failure.stack, None);
}

#[tokio::test]
async fn a_program_that_cannot_be_started_is_not_runnable() {
    let folder = tempfile::tempdir().unwrap();
    let plain = folder.path().join("plain");
    std::fs::write(&plain, "no program").unwrap();
    let folder_name = folder.path().to_str().unwrap().to_owned();
    for program in ["/no/such/program", "no-such-program-anywhere", plain.to_str().unwrap(), &folder_name] {
        let route = CommandRoute { program: program.into(), ..shell("") };
        let (failure, verdict, _) = failed(&run(route).await.outcome);
        assert_eq!((failure.class.as_str(), verdict), ("not_runnable", Verdict::ByPolicy), "{program}");
        assert!(
            failure.message.contains(program) && failure.message.contains("cannot be started"),
            "{}",
            failure.message
        );
    }
}

#[tokio::test]
async fn a_program_without_a_slash_is_looked_up_in_path() {
    let route = CommandRoute { program: "sh".into(), ..shell("echo found") };
    assert_eq!(succeeded(&run(route).await.outcome).unwrap().body, b"found\n");
}

#[tokio::test]
async fn a_nul_in_an_id_is_a_bad_payload() {
    let mut attempt = attempt("null");
    let mut spec = (*attempt.task).clone();
    spec.id = "a\0b".into();
    attempt.task = spec.into();
    let report = CommandHandler::new(shell("exit 0"), Caps::default()).unwrap().run(attempt).await;
    assert_eq!(failed(&report.outcome).0.class, "bad_payload");
}

#[tokio::test]
async fn a_result_file_says_everything() {
    let report = sh(r#"cat > "$REDELIVER_ATTEMPT_DIR/result.json" <<'X'
{"verdict":"retry","class":"robot_busy","code":1000001,"retry_after_ms":1500.2,"message":"busy","stack":"at click()",
 "cost":0.25,"more":"is left alone","attachments":[{"name":"a.png","url":"https://shots/a.png"}]}
X
echo warning >&2; exit 3"#)
    .await;
    let Outcome::Failure { cost, .. } = &report.outcome else { panic!("it said retry") };
    assert_eq!(*cost, Some(0.25));
    let (failure, verdict, asked) = failed(&report.outcome);
    assert_eq!((failure.class.as_str(), failure.code.as_deref()), ("robot_busy", Some("1000001")));
    assert_eq!((failure.message.as_str(), verdict, asked.unwrap().delay_ms), ("busy", Verdict::Retry, 1501));
    assert_eq!(failure.stack.as_deref(), Some("at click()\n--- stderr ---\nwarning\n"));
    assert_eq!(report.attachments.len(), 1);
    assert_eq!(report.attachments[0].body, AttachmentBody::Link("https://shots/a.png".into()));
    assert_eq!(report.attachments[0].media_type, "image/png");
}

#[tokio::test]
async fn the_word_wins_over_the_exit_code() {
    let file =
        |json: &str, code: i32| format!("printf '%s' '{json}' > $REDELIVER_ATTEMPT_DIR/result.json; exit {code}");
    let result =
        succeeded(&sh(&file(r#"{"verdict":"success","result":{"n":12345678901234567890123}}"#, 1)).await.outcome);
    let result = result.unwrap();
    assert_eq!(
        (result.media_type.as_str(), result.body.as_slice()),
        ("application/json", &br#"{"n":12345678901234567890123}"#[..])
    );
    let (failure, verdict, _) = failed(&sh(&file(r#"{"verdict":"dead"}"#, 0)).await.outcome);
    assert_eq!((failure.class.as_str(), verdict), ("failed", Verdict::Dead));
    let (failure, verdict, _) = failed(&sh(&file(r#"{"verdict":"retry","code":"x"}"#, 64)).await.outcome);
    assert_eq!((failure.code.as_deref(), verdict), (Some("x"), Verdict::Retry));
    // With no word of ours in it, it is the result.
    let plain = succeeded(&sh(&file("{\"pages\": 3}\n", 0)).await.outcome).unwrap();
    assert_eq!((plain.media_type.as_str(), plain.body.as_slice()), ("application/json", &b"{\"pages\": 3}"[..]));
    for nothing in ["{}", r#"{"result":null}"#, r#"{"pages":3,"cost":1}"#] {
        assert_eq!(succeeded(&sh(&file(nothing, 0)).await.outcome), None, "{nothing}");
    }
    // Without a verdict the exit code decides, and the rest holds.
    assert_eq!(succeeded(&sh(&file(r#"{"result":[]}"#, 0)).await.outcome).unwrap().body, b"[]");
    let (failure, verdict, _) = failed(&sh(&file(r#"{"class":"c"}"#, 75)).await.outcome);
    assert_eq!((failure.class.as_str(), verdict), ("c", Verdict::Retry));
}

#[tokio::test]
async fn the_last_line_counts_when_it_is_an_object_with_a_verdict() {
    let report =
        sh(r#"echo log; echo '{"verdict":"dead","class":"locked","message":"shop is locked"}'; echo; exit 0"#).await;
    let (failure, verdict, _) = failed(&report.outcome);
    assert_eq!(
        (failure.class.as_str(), failure.message.as_str(), verdict),
        ("locked", "shop is locked", Verdict::Dead)
    );
    let result =
        succeeded(&sh(r#"echo log; printf '  {"verdict":"success","result":"r"}'; exit 9"#).await.outcome).unwrap();
    assert_eq!(result.body, br#""r""#);
    // Other objects are output like any other.
    let result = succeeded(&sh(r#"echo '{"class":"A","result":1}'"#).await.outcome).unwrap();
    assert_eq!(result.body, b"{\"class\":\"A\",\"result\":1}\n");
    // The file comes first.
    let both = r#"echo '{"verdict":"success"}' > $REDELIVER_ATTEMPT_DIR/result.json; echo '{"verdict":"dead"}'"#;
    assert_eq!(succeeded(&sh(both).await.outcome), None);
}

#[tokio::test]
async fn a_word_that_cannot_be_read_is_an_invalid_response_or_what_the_exit_code_says() {
    let table = [
        ("echo '{\"verdict\":' > $REDELIVER_ATTEMPT_DIR/result.json", "result.json cannot be used: EOF"),
        ("echo '[]' > $REDELIVER_ATTEMPT_DIR/result.json", "result.json cannot be used"),
        ("echo '{\"verdict\":\"maybe\"}' > $REDELIVER_ATTEMPT_DIR/result.json", "unknown variant `maybe`"),
        ("echo '{\"cost\":\"5\"}' > $REDELIVER_ATTEMPT_DIR/result.json", "result.json cannot be used: invalid type"),
        ("printf '\\377' > $REDELIVER_ATTEMPT_DIR/result.json", "result.json cannot be used"),
        (": > $REDELIVER_ATTEMPT_DIR/result.json", "result.json cannot be used: EOF"),
        ("mkdir $REDELIVER_ATTEMPT_DIR/result.json", "result.json is no regular file"),
        ("ln -s /etc/passwd $REDELIVER_ATTEMPT_DIR/result.json", "result.json is no regular file"),
        ("mkfifo $REDELIVER_ATTEMPT_DIR/result.json", "result.json is no regular file"),
        ("head -c 3000000 /dev/zero > $REDELIVER_ATTEMPT_DIR/result.json", "result.json is 3000000 bytes long"),
        ("echo '{\"verdict\":\"maybe\"}'", "the last line cannot be used: unknown variant `maybe`"),
    ];
    for (script, problem) in table {
        let (failure, verdict, _) = failed(&sh(script).await.outcome);
        assert_eq!((failure.class.as_str(), verdict), ("invalid_response", Verdict::ByPolicy), "{script}");
        assert!(failure.message.contains(problem), "{:?} lacks {problem:?}", failure.message);
        let (failure, ..) = failed(&sh(&format!("{script}; exit 3")).await.outcome);
        assert_eq!(failure.class, "failed", "{script}");
        assert!(
            failure.message.starts_with("exit code 3; ") && failure.message.contains(problem),
            "{}",
            failure.message
        );
    }
}

#[tokio::test]
async fn every_other_file_is_an_attachment() {
    let report = sh(r#"cd "$REDELIVER_ATTEMPT_DIR"
        printf '\211PNG\r\n\032\nrest' > b-shot; echo '<p>' > a.html; echo note > c; printf '\0' > d; : > e.json
        ln -s /etc/passwd link; mkdir folder; echo x > folder/inside; mkfifo pipe; echo '{}' > result.json; exit 1"#)
    .await;
    let found: Vec<_> = report.attachments.iter().map(|a| (a.name.as_str(), a.media_type.as_str())).collect();
    let expected = [
        ("a.html", "text/html"),
        ("b-shot", "image/png"),
        ("c", "text/plain; charset=utf-8"),
        ("d", "application/octet-stream"),
        ("e.json", "application/json"),
    ];
    assert_eq!(found, expected);
    assert_eq!(report.attachments[2].body, AttachmentBody::Bytes(b"note\n".as_slice().into()));
}

#[tokio::test]
async fn attachments_are_bounded_in_size_and_number() {
    let handler = CommandHandler::new(
        shell("cd $REDELIVER_ATTEMPT_DIR; for i in 1 2 3 4; do echo 1234 > f$i; done; echo 12345 > f0.png"),
        Caps { attachment: 5, attachments: 3, ..Caps::default() },
    )
    .unwrap();
    let report = handler.run(attempt("null")).await;
    let names: Vec<&str> = report.attachments.iter().map(|a| a.name.as_str()).collect();
    assert_eq!(names, ["f0.png", "f1", "f2"]);
    assert_eq!(report.attachments[0].body, AttachmentBody::TooLarge { size: 6 });
    assert_eq!(report.attachments[1].body, AttachmentBody::Bytes(b"1234\n".as_slice().into()));
}

#[tokio::test]
async fn of_too_much_output_the_end_is_kept() {
    let script =
        "head -c 3000000 /dev/zero | tr '\\0' x; echo; echo the end; head -c 20000 /dev/zero | tr '\\0' y >&2; exit 0";
    let result = succeeded(&sh(script).await.outcome).unwrap();
    assert_eq!((result.body.len(), result.truncated), (1 << 20, true));
    assert!(result.body.ends_with(b"x\nthe end\n"));
    let (failure, ..) = failed(&sh(&format!("{script}; exit 1").replace("exit 0; ", "")).await.outcome);
    assert_eq!(failure.stack.map(|stack| stack.len()), Some(8 * 1024));
}

#[tokio::test]
async fn the_attempt_folder_is_removed_whatever_happens() {
    for end in ["exit 0", "exit 1", "kill -9 $$", "chmod 0500 ."] {
        let result = sh(&format!(
            "cd $REDELIVER_ATTEMPT_DIR; pwd >&2; mkdir -p a/b; : > a/b/c; echo '{{\"verdict\":\"retry\"}}'; {end}"
        ))
        .await;
        let (failure, ..) = failed(&result.outcome);
        let folder = failure.stack.unwrap_or_default().lines().next().unwrap_or_default().to_owned();
        assert!(folder.contains("redeliver-attempt-"), "{folder}");
        assert!(!Path::new(&folder).exists(), "{folder} after {end}");
    }
}

#[tokio::test]
async fn a_timeout_ends_the_whole_group() {
    let fifo = Fifo::new();
    let mut pipe = fifo.open();
    // A child and a grandchild hold the pipe.
    let script = format!("exec >{} 2>&1; (sleep 1000 & sleep 1000) & echo started; sleep 1000", fifo.name());
    let began = Instant::now();
    let report = run(CommandRoute { timeout: Duration::from_secs(2), ..shell(&script) }).await;
    let (failure, verdict, _) = failed(&report.outcome);
    assert_eq!((failure.class.as_str(), verdict), ("timeout", Verdict::ByPolicy));
    assert_eq!(failure.message, "not done within 2000 ms; its process group was ended");
    assert!(began.elapsed() < Duration::from_secs(20));
    let mut rest = String::new();
    pipe.read_to_string(&mut rest).await.unwrap();
    assert_eq!(rest, "started\n");
}

#[tokio::test]
async fn a_command_that_ignores_sigterm_is_killed() {
    let fifo = Fifo::new();
    let mut pipe = fifo.open();
    let script = format!("trap '' TERM; exec >{}; echo started; while :; do sleep 1000; done", fifo.name());
    let report = run(CommandRoute { timeout: Duration::from_secs(2), ..shell(&script) }).await;
    assert_eq!(failed(&report.outcome).0.class, "timeout");
    let mut rest = String::new();
    pipe.read_to_string(&mut rest).await.unwrap();
}

#[tokio::test]
async fn a_command_may_tidy_up_at_sigterm_and_its_word_still_counts() {
    let said = r#"echo '{"verdict":"success","result":1}' > $REDELIVER_ATTEMPT_DIR/result.json"#;
    let before = format!("{said}; sleep 1000");
    let report = run(CommandRoute { timeout: Duration::from_secs(2), ..shell(&before) }).await;
    assert_eq!(succeeded(&report.outcome).unwrap().body, b"1");
    let trap = r#"trap 'echo shot > $REDELIVER_ATTEMPT_DIR/shot.txt; exit 0' TERM; sleep 1000 & wait"#;
    let report = run(CommandRoute { timeout: Duration::from_secs(2), ..shell(trap) }).await;
    assert_eq!(failed(&report.outcome).0.class, "timeout");
    assert_eq!(report.attachments[0].name, "shot.txt");
}

#[tokio::test]
async fn cancelling_ends_the_whole_group_and_the_attempt() {
    let fifo = Fifo::new();
    let mut pipe = fifo.open();
    let script = format!("exec >{}; sleep 1000 & echo started; wait", fifo.name());
    let handler = CommandHandler::new(shell(&script), Caps::default()).unwrap();
    let attempt = attempt("null");
    let cancel = attempt.cancel.clone();
    let running = tokio::spawn(async move { handler.run(attempt).await });
    says(&mut pipe, "started").await;
    cancel.cancel();
    running.await.unwrap();
    let mut rest = String::new();
    pipe.read_to_string(&mut rest).await.unwrap();
}

#[tokio::test]
async fn dropping_an_attempt_ends_the_whole_group() {
    let fifo = Fifo::new();
    let mut pipe = fifo.open();
    let script = format!("exec >{}; sleep 1000 & echo started; wait", fifo.name());
    let handler = CommandHandler::new(shell(&script), Caps::default()).unwrap();
    let running = tokio::spawn(async move { handler.run(attempt("null")).await });
    says(&mut pipe, "started").await;
    running.abort();
    assert!(running.await.unwrap_err().is_cancelled());
    let mut rest = String::new();
    pipe.read_to_string(&mut rest).await.unwrap();
}

#[tokio::test]
async fn stragglers_of_the_group_end_with_the_leader() {
    let fifo = Fifo::new();
    let mut pipe = fifo.open();
    // The leader does not leave before the straggler is there.
    let script = format!(
        "up=$REDELIVER_ATTEMPT_DIR/up; mkfifo $up; (trap '' TERM; exec >{} 2>&1; echo > $up; sleep 1000; :) & read x < $up; echo done",
        fifo.name()
    );
    let began = Instant::now();
    let result = succeeded(&sh(&script).await.outcome).unwrap();
    assert_eq!(result.body, b"done\n");
    assert!(began.elapsed() < Duration::from_secs(20));
    let mut rest = String::new();
    pipe.read_to_string(&mut rest).await.unwrap();
}

#[tokio::test]
async fn a_daemon_that_left_the_group_and_holds_the_output_keeps_nothing_waiting() {
    let script = "up=$REDELIVER_ATTEMPT_DIR/up; mkfifo $up; setsid sh -c \"echo \\$\\$ > $up; exec sleep 1000\" & read pid < $up; echo $pid";
    let began = Instant::now();
    let result = succeeded(&sh(script).await.outcome).unwrap();
    assert!(began.elapsed() < Duration::from_secs(20));
    let daemon: i32 = String::from_utf8(result.body).unwrap().trim().parse().unwrap();
    // SAFETY: two integers; the number is the daemon's, which sleeps until this.
    assert_eq!(unsafe { libc::kill(daemon, libc::SIGKILL) }, 0, "it was out of our reach, and is now ended");
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn two_hundred_attempts_leave_no_zombies_and_no_open_files() {
    let open_files = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let handler = CommandHandler::new(CommandRoute { program: "true".into(), ..shell("") }, Caps::default()).unwrap();
    succeeded(&handler.run(attempt("null")).await.outcome);
    let before = open_files();
    for _ in 0..200 {
        succeeded(&handler.run(attempt("null")).await.outcome);
    }
    // Other tests of this process open files too, but nowhere near one for each attempt.
    assert!(open_files() < before + 100, "{} open files, {before} before", open_files());
    let me = std::process::id();
    let zombies = std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| std::fs::read_to_string(entry.ok()?.path().join("stat")).ok())
        .filter(|stat| stat.contains(&format!("(true) Z {me} ")))
        .count();
    assert_eq!(zombies, 0);
}

#[test]
fn a_route_that_can_never_be_used_says_what_is_wrong() {
    let refused = |route: CommandRoute| CommandHandler::new(route, Caps::default()).map(|_| ()).unwrap_err();
    assert_eq!(refused(CommandRoute { program: String::new(), ..shell("") }), CommandRouteError::NoProgram);
    assert_eq!(refused(shell("a\0b")), CommandRouteError::Nul { field: "args" });
    let odd = CommandRoute { env: vec!["=x".into()], ..shell("") };
    assert_eq!(refused(odd).to_string(), "env: \"=x\" has no name, wanted NAME or NAME=value");
}
