//! The table. English first, then Chinese; a word that is not used is refused like one that is missing.

use super::Lang;

macro_rules! words {
    ($($name:ident: $en:literal, $zh:literal;)*) => {
        impl Lang {
            $(
                pub(crate) fn $name(self) -> &'static str {
                    match self {
                        Lang::En => $en,
                        Lang::Zh => $zh,
                    }
                }
            )*
        }

        #[cfg(test)]
        const ALL: &[(&str, &str, &str)] = &[$((stringify!($name), $en, $zh)),*];
    };
}

words! {
    // The frame.
    navigation: "Main", "主导航";
    skip: "Skip to the content", "跳到正文";
    language: "Language", "语言";
    theme: "Theme", "主题";
    theme_system: "Auto", "自动";
    theme_light: "Light", "浅色";
    theme_dark: "Dark", "深色";
    sign_out: "Sign out", "退出登录";
    sign_in: "Sign in", "登录";
    sign_in_hint: "Paste your token to sign in.", "粘贴您的令牌以登录。";
    sign_in_link_hint: "A one-time link is printed when the server starts for the first time. More tokens:", "服务首次启动时会打印一次性登录链接。创建更多令牌：";
    sign_in_failed: "This token is not valid, or no longer.", "令牌无效或已失效。";
    sign_in_link_failed: "This link was used before, or is too old.", "此链接已被使用或已过期。";
    token: "Token", "令牌";
    keyboard: "Keyboard", "快捷键";
    key_search: "search", "搜索";
    key_down: "next row", "下一行";
    key_up: "previous row", "上一行";
    key_select: "select the row", "选中该行";
    key_open: "open the row", "打开该行";
    key_replay: "replay", "重放";
    key_help: "this list", "显示本列表";
    close: "Close", "关闭";
    back: "Back", "返回";
    copy: "Copy", "复制";
    copied: "Copied", "已复制";
    same_command: "The same on the command line:", "等价的命令行：";
    just_now: "just now", "刚刚";
    now: "now", "现在";
    show_all: "Show all", "查看全部";
    cut_here: "shortened", "已截短";
    pages: "Pages", "分页";
    first_page: "First page", "第一页";
    next_page: "Next page", "下一页";
    not_found_title: "There is nothing here", "这里什么也没有";
    failed_title: "This was not done", "操作未完成";
    forbidden_title: "Not allowed", "没有权限";
    task_not_found: "There is no such task; it may have been pruned.", "没有这个任务；它可能已被清理。";
    job_not_found: "There is no such replay job.", "没有这个重放作业。";
    group_gone: "No dead letter is in this group any more.", "该组中已没有死信。";

    // What an action has done.
    done_replay: "The replay has begun.", "重放已开始。";
    done_edited: "The edited payload runs as a new task.", "修改后的负载已作为新任务运行。";
    done_run_now: "It will run now.", "任务将立即运行。";
    done_cancelled: "Cancelled.", "已取消。";
    done_opened: "The breaker is open.", "已强制熔断。";
    done_closed: "The breaker is closed.", "熔断器已恢复。";
    done_paused: "Paused.", "已暂停。";
    done_resumed: "Resumed.", "已恢复。";
    done_noted: "Saved.", "已保存。";

    // Places.
    overview: "Overview", "总览";
    dead_letters: "Dead letters", "死信";
    replay_jobs: "Replays", "重放作业";
    replay_job: "Replay", "重放作业";
    tasks: "Tasks", "任务";
    gates: "Gates", "闸门";
    policies: "Policies", "策略";
    stats: "Statistics", "统计";
    workers: "Workers", "工作进程";
    audit: "Audit", "审计";

    // Statuses, reasons, outcomes.
    pending: "pending", "待执行";
    running: "running", "执行中";
    retry_waiting: "waiting to retry", "等待重试";
    succeeded: "succeeded", "成功";
    dead: "dead", "死信";
    discarded: "discarded", "已丢弃";
    cancelled: "cancelled", "已取消";
    retries_exhausted: "retries exhausted", "重试已用尽";
    permanent_error: "permanent error", "永久性错误";
    circuit_open: "circuit open", "熔断中";
    deadline_exceeded: "deadline exceeded", "超过截止时间";
    malformed: "malformed", "格式错误";
    duplicate_conflict: "duplicate conflict", "重复冲突";
    poison: "poison", "毒消息";
    outcome_retried: "failed, retried", "失败，已安排重试";
    outcome_died: "failed, dead", "失败，转为死信";
    outcome_released: "given back", "已交还";
    degraded: "degraded", "降级";
    held: "held", "被拦住";
    held_by: "held by", "被拦于";

    // Overview.
    as_of: "as of", "更新于";
    ended_per_minute: "Ended per minute", "每分钟完成";
    failure_reasons: "Failure reasons", "失败原因";
    ladder: "The ladder", "重试阶梯";
    ladder_hint: "what waits on each rung and when it falls due", "每一级上等待的任务及其到期时间";
    ladder_is_part: "So many wait that only those that fall due soonest are drawn.", "等待的任务太多，这里只画出最先到期的部分。";
    nobody_waits: "Nothing waits for a retry.", "没有任务在等待重试。";
    no_rungs: "No rungs are configured.", "没有配置阶梯。";
    other_delays: "others", "其他延迟";
    due_now: "due", "已到期";
    next: "next", "下一个";
    lanes: "Queues", "队列";
    attention: "Needs a look", "需要关注";
    all_calm: "All calm. Nothing needs you.", "一切正常，没有需要您处理的事情。";
    success_rate: "Success", "成功率";
    first_try: "first try", "首次成功";
    by_retry: "by retry", "重试后成功";
    fell_back: "by fallback", "兜底完成";
    per_minute: "Per minute", "每分钟";
    waiting: "waiting", "等待中";
    new_ones: "new", "新任务";
    retries: "retries", "重试";
    lateness: "Lateness", "延迟";
    on_time: "on time", "准时";
    oldest_due: "oldest task that is due", "最早到期而未执行的任务";
    nothing_due: "nothing due is waiting", "没有到期未执行的任务";
    running_now: "Running", "执行中";
    none_new: "none new", "没有新增";
    retry_share_of_success: "Of all successes, by retry:", "成功任务中靠重试完成的占";
    nothing_ended: "Nothing has ended in this time.", "这段时间内没有任务结束。";
    nothing_failed: "Nothing has failed in this time.", "这段时间内没有失败。";
    in_store: "In store", "存储中";
    in_broker: "In broker", "消息队列中";
    consumers: "Consumers", "消费者";
    oldest: "Oldest", "最早";
    paused: "paused", "已暂停";
    strangers: "strangers", "无主副本";
    strangers_hint: "copies in the DLQ that no task belongs to", "死信队列中没有对应任务的消息";
    rules_differ: "The workers do not all run the same rules.", "各工作进程运行的规则不一致。";
    no_workers: "No worker has been seen in the last minutes.", "最近几分钟没有工作进程上报。";

    // Tasks.
    type_: "Type", "类型";
    label: "Label", "标签";
    labels: "Labels", "标签";
    class: "Class", "错误类别";
    code: "Code", "错误码";
    share: "Share", "占比";
    status_word: "Status", "状态";
    error: "Error", "错误";
    error_text: "Error text", "错误文本";
    search: "Search", "搜索";
    search_hint: "part of the error message", "错误信息的一部分";
    clear: "Clear", "清除";
    more_filters: "More filters", "更多筛选";
    any: "any", "不限";
    since: "Since", "起始";
    until: "Until", "截止";
    attempts: "Attempts", "尝试次数";
    attempt: "Attempt", "第几次尝试";
    queue: "Queue", "队列";
    fingerprint: "Fingerprint", "指纹";
    reason_is: "Reason", "死因";
    no_tasks: "There are no tasks yet.", "还没有任务。";
    nothing_matches: "Nothing matches.", "没有符合条件的任务。";
    nothing_here: "Nothing here.", "暂无内容。";
    select: "Select", "选择";
    nothing_selected: "nothing is selected", "没有选中任何一封";
    select_all: "Select all", "全选";
    replay_selected: "Replay selected", "重放所选";
    replay_all_matching: "Replay all that match", "重放全部符合条件的";
    discard_selected: "Discard selected", "丢弃所选";
    died: "Died", "死亡时间";
    when: "When", "时间";
    due: "Due", "到期";

    // One task.
    timeline: "Timeline", "时间线";
    details: "Details", "详情";
    payload: "Payload", "负载";
    result: "Result", "结果";
    truncated: "truncated", "已截断";
    masked: "fields masked", "部分字段已隐藏";
    as_it_arrived: "As it arrived", "原始消息";
    last_error: "Last error", "最近一次错误";
    same_failures: "All with the same failure", "查看同类失败";
    created: "Created", "创建";
    ended: "Ended", "结束";
    replayed_generation: "Replayed, generation", "已重放，第几代：";
    held_until_gate: "Waits for a gate", "等待闸门放行";
    next_attempt: "Next attempt", "下一次尝试";
    delay: "Delay", "延迟";
    because: "because of", "依据：";
    waited: "waited", "等待了";
    took: "took", "用时";
    cost: "Cost", "成本";
    stack: "Stack", "堆栈";
    policy: "policy", "策略";
    variant: "Variant", "变体";
    kept_elsewhere: "kept elsewhere:", "存放于别处：";
    too_large: "too large, not kept", "过大，未保存";
    retry_count: "Retries spent", "已用重试";
    generation: "Generation", "代";
    priority: "Priority", "优先级";
    deadline: "Deadline", "截止时间";
    parked_until: "Parked until", "停放至";
    worker: "Worker", "工作进程";
    dlq_copy: "DLQ copy", "死信队列副本";
    idempotency_key: "Idempotency key", "幂等键";
    cache_key: "Cache key", "缓存键";
    reply_to: "Reply to", "回复到";
    conflicts_with: "Conflicts with", "冲突任务";
    note: "Note", "备注";
    replay: "Replay", "重放";
    not_replayable: "cannot be replayed as it is", "无法原样重放";
    edit_payload: "Edit payload", "修改负载";
    edit_hint: "A JSON Patch makes a new payload. The dead letter keeps its own; what it was and who changed it stays on record.", "用 JSON Patch 生成新的负载。原死信保持不变，原内容和修改人都会记录在案。";
    json_patch: "JSON Patch", "JSON Patch";
    show_difference: "Show the difference", "查看差异";
    edited_from: "Edited from", "修改自";
    edited_to: "Edited to", "修改为";
    edit_and_replay: "Edit and replay", "修改并重放";
    difference: "Difference", "差异";
    discard: "Discard", "丢弃";
    run_now: "Run now", "立即运行";
    cancel_task: "Cancel", "取消任务";
    reason_why: "Reason", "理由";
    reason_example: "carrier is back, ticket 4711", "例如：承运商已恢复，工单 4711";

    // Groups.
    groups: "Groups", "分组";
    list_all: "List all", "全部列出";
    group_by: "Group by", "分组依据";
    by_error: "Error", "错误";
    only: "Only", "仅限";
    count: "Count", "数量";
    last_24_hours: "Last 24 hours", "最近 24 小时";
    what_they_share: "What they share", "共同点";
    last_seen: "Last seen", "最近出现";
    first_seen: "First seen", "首次出现";
    no_dead_letters: "No dead letters. Sleep well.", "没有死信，安心休息吧。";
    without: "(none)", "（无）";
    no_failure: "no failure recorded", "没有失败记录";
    trend_new: "new", "新出现";
    trend_growing: "growing", "增长中";
    trend_quiet: "quiet", "已平息";
    now_dead: "dead now", "当前死信";
    newest_letters: "Newest letters", "最新的死信";
    next_automatic_replay: "Replays itself", "自动重放";
    breaker: "Breaker", "熔断器";
    owner: "Owner", "负责人";
    note_and_owner: "Owner and note", "负责人与备注";
    no_note: "Nobody has written anything here.", "还没有人写备注。";
    save: "Save", "保存";

    // Replays.
    looked_at_first: "What it would do", "执行前预览";
    matching: "Match", "符合条件";
    frozen_selection: "decided once, never widens", "选定后不再扩大";
    will_run_again: "Will run again", "将重新运行";
    will_be_discarded: "Will be discarded", "将被丢弃";
    skipped: "skipped", "跳过";
    nothing_to_do: "There is nothing to do.", "没有可执行的内容。";
    skip_not_replayable: "cannot run as it is", "无法原样运行";
    skip_not_dead: "not dead any more", "已不是死信";
    skip_not_found: "not found", "找不到";
    skip_not_matched: "does not match", "不符合条件";
    rate: "Rate", "速率";
    rate_hint: "letters a second, minute or hour: 20/s, 300/min; empty: no limit", "每秒、每分或每小时多少封，如 20/s、300/min；留空则不限";
    ramp: "Ramp up: 1 → 5 → 25 → 100 %", "逐级放量：1 → 5 → 25 → 100 %";
    ramp_hint: "a canary first; goes on when it has ended well", "先放金丝雀，结果良好才继续";
    max_failure_ratio: "Stop when more fail than", "失败占比超过则停止";
    max_failure_ratio_hint: "0.2 is one in five; empty: never", "0.2 即五分之一；留空则不停";
    no_jobs: "Nothing was replayed yet.", "还没有重放作业。";
    state: "State", "状态";
    progress: "Progress", "进度";
    letters: "Letters", "封数";
    started: "Started", "开始";
    time_left: "Time left", "剩余时间";
    about: "about", "约";
    automatic: "automatic", "自动";
    job_selecting: "selecting", "选取中";
    job_stopped: "stopped itself", "已自行停止";
    job_done: "done", "已完成";
    failed_again: "failed again", "再次失败";
    replayed_and_running: "replayed, not ended yet", "已重放，尚未结束";
    stops_above: "stops above", "超过即停：";
    pause: "Pause", "暂停";
    resume: "Resume", "恢复";
    cancel_job: "Cancel the rest", "取消剩余部分";
    canary: "canary", "金丝雀";
    selection: "Selection", "选择范围";
    by: "By", "操作人";
    changed: "Last changed", "最近变更";
    no_limit: "no limit", "不限";
    each_letter: "What became of each", "每一封的结果";
    outcome_word: "Outcome", "结果";
    all: "All", "全部";

    // Gates.
    breakers: "Breakers", "熔断器";
    limits_and_holds: "Limits, caps and holds", "限流、并发上限与等待";
    pauses: "Pauses", "暂停";
    no_breakers: "No breaker is configured, or nothing has failed yet.", "没有配置熔断器，或尚无失败。";
    no_limits: "No limit is configured, or nothing has gone through one yet.", "没有配置限流，或尚无任务经过。";
    no_pauses: "Nothing is paused.", "没有暂停项。";
    open: "open", "熔断中";
    has_room: "has room", "有余量";
    half_open: "half open", "半开";
    closed: "closed", "正常";
    shut: "shut", "已满";
    by_hand: "by hand", "人工";
    opened_by: "opened by", "手动熔断：";
    closed_by: "closed by", "手动恢复：";
    probes: "probes", "探测";
    probes_failed: "probes failed", "次探测失败";
    failures_in_a_row: "failures in a row", "次连续失败";
    not_configured: "not configured any more", "已不在配置中";
    next_probe: "next probe", "下次探测";
    none_by_itself: "not by itself", "不会自动进行";
    returning: "returning", "正在恢复，";
    when_open_park: "open: tasks wait", "熔断时：任务等待";
    when_open_dead_letter: "open: tasks die", "熔断时：任务转为死信";
    when_open_fallback: "open: tasks fall back", "熔断时：任务走兜底";
    force_open: "Force open", "强制熔断";
    force_close: "Force close", "强制恢复";
    key: "Key", "键";
    room: "Room", "余量";
    next_chance: "Next chance", "下次机会";
    rule: "Rule", "规则";
    when_one_ends: "when one ends", "等一个结束";
    calls: "calls", "次调用";
    burst: "burst", "突发";
    at_a_time: "at a time", "个并发";
    or_type: "or type", "或类型";

    // Policies.
    version: "version", "版本";
    own_file_rules: "from the own file", "来自本机配置文件";
    explain: "Explain", "解释";
    explain_hint: "Ask what would happen to a task: which rule decides, why the earlier ones do not, when it would be tried again.", "询问一个任务会怎样处理：由哪条规则决定、前面的规则为何不适用、何时重试。";
    at: "At", "时间";
    decides: "Decided by", "适用策略：";
    why_not_earlier: "Why not an earlier one", "前面的规则为何不适用";
    fallbacks: "Fallbacks", "兜底方式";
    automatic_replays: "Replays itself after", "自动重放间隔";
    earliest: "Earliest", "最早";
    latest: "Latest", "最晚";
    in_force: "In force", "生效规则";
    hours: "Hours", "时段";
    backoff: "Backoff", "退避";
    critical: "critical", "关键";
    ab_report: "A/B report", "A/B 报告";
    no_variants: "No task of a policy with variants has ended.", "还没有带变体的策略的任务结束。";
    too_few: "too few to tell", "样本太少，无法判断";
    interval_95: "95 % interval", "95% 置信区间";
    versions: "Versions", "版本记录";
    no_versions: "Nothing was put in the store: every node follows its own file.", "存储中没有规则：各节点使用本机配置文件。";
    text: "text", "内容";
    own_files_again: "own files again", "恢复使用本机文件";
    retry_after_honour: "also beyond the cap", "超过上限也照办";
    retry_after_ignored: "ignored", "忽略";
    retry_after_exact: "replaces the delay", "替代计算出的延迟";
    retry_after_floor: "never earlier than asked", "不早于要求的时间";

    // Statistics.
    ended_since: "ended since", "统计自";
    newest_only: "Counted are the newest tasks only, those that have ended since", "仅统计最近结束的任务，起点：";
    count_all: "Count all; that may take a while.", "统计全部（可能较慢）";
    show: "Show", "查看";
    by_group: "By group", "分组统计";
    by_attempt: "By attempt", "按第几次尝试";
    on_which_attempt: "Succeeded on attempt", "第几次成功";
    final_success: "Final success", "最终成功率";
    attempts_per_success: "Attempts per success", "每次成功的尝试数";
    extra_requests: "Extra requests", "额外请求";
    extra: "Extra", "额外";
    least_possible: "least possible", "理论最低";
    handler_time: "Handler time", "处理耗时";
    more_groups: "more groups", "个其他分组";

    // Workers.
    silent: "silent", "无响应";
    rules: "Rules", "规则";
    other_rules: "other rules than here", "与本机规则不同";
    broker_silent: "The broker does not answer:", "消息队列无响应：";
    dlq_mirror: "DLQ copies", "死信队列副本";
    copies_present: "Present", "已有";
    copies_wanted: "Wanted", "待发";

    // Audit.
    audit_hint: "only grows", "只增不减";
    who: "Who", "操作人";
    action: "Action", "操作";
    target: "Target", "对象";
    door: "Door", "入口";
}

#[cfg(test)]
mod tests {
    use super::ALL;

    #[test]
    fn every_text_is_there_in_both_languages_and_the_chinese_is_chinese() {
        for (name, en, zh) in ALL {
            assert!(!en.trim().is_empty() && !zh.trim().is_empty(), "{name}");
            let is_chinese = zh.chars().any(|c| ('\u{4e00}'..='\u{9fff}').contains(&c));
            assert!(is_chinese || en == zh, "{name}: {zh}");
            let is_english = !en.chars().any(|c| ('\u{4e00}'..='\u{9fff}').contains(&c));
            assert!(is_english, "{name}: {en}");
        }
    }
}
