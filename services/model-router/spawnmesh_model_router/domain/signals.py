"""The table of text signals: wordings of failed model calls and their reasons, in order of
precedence.

Sources: the error references of Anthropic, OpenAI, Google, Amazon Bedrock, Azure, OpenRouter, xAI,
Zhipu and Qwen, and the error names of Node's and Python's networking. A row matches a wording that
providers use in general, not the sentence of a single incident.
"""

import re
from dataclasses import dataclass
from enum import Enum, auto
from functools import cached_property
from typing import Final

from spawnmesh_model_router.domain import signal_terms as terms
from spawnmesh_model_router.domain.reasons import FailoverReason as R
from spawnmesh_model_router.domain.signal_terms import CERTIFICATE_CODES, PERIOD, SOCKET_CODES, WORD


class Topic(Enum):
    """The subject of a text.

    Several topics may have one reason. Only some topics override a status.
    """

    LOCAL = auto()
    IMAGE = auto()
    REFUSAL = auto()
    TLS = auto()
    LOGIN = auto()
    TRANSCRIPT = auto()
    SESSION = auto()
    MODEL = auto()
    VENDOR = auto()
    REFILL = auto()
    CONTEXT = auto()
    REPLAY = auto()
    BILLING = auto()
    CREDITS = auto()
    PERIODIC = auto()
    RATE = auto()
    OVERLOADED = auto()
    SERVER = auto()
    INTERNAL = auto()
    TOKEN_REFRESH = auto()
    AUTH_PERMANENT = auto()
    AUTH = auto()
    TIMEOUT = auto()
    SILENCE = auto()


@dataclass(frozen=True)
class Signal:
    """A row of the table: a lower-case text that matches `pattern` has this topic and reason.

    `provider` limits the row to one provider.
    """

    topic: Topic
    reason: R
    pattern: re.Pattern[str]
    provider: str = ""

    @cached_property
    def is_anchored(self) -> bool:
        """Return whether the pattern matches only at the beginning of a text."""
        return "^" in self.pattern.pattern.replace("[^", "")


def row(topic: Topic, reason: R, *phrases: str, provider: str = "") -> Signal:
    """Return a signal for any of the phrases, in lower case, at word boundaries.

    A blank in a phrase also matches `_`, which is a word boundary, too. Phrases with Chinese,
    Japanese or Korean characters match anywhere, because these scripts have no blanks between
    words.
    """
    spaced = [phrase.replace(" ", r"[\s_]++") for phrase in phrases]
    latin = "|".join(phrase for phrase in spaced if phrase.isascii())
    forms = [phrase for phrase in spaced if not phrase.isascii()]
    if latin:
        forms.insert(0, rf"(?<![a-z0-9])(?:{latin})(?![a-z0-9])")
    return Signal(topic, reason, re.compile("|".join(forms), re.DOTALL), provider)


ZHIPU_CODE: Final = r"(?:code[\"']?:\s*[\"']?|error\s+|^)"
# The request exceeds the tokens of a minute. Another model may have a higher limit.
TOO_LARGE_FOR_A_MINUTE: Final = row(
    Topic.REFILL, R.RATE_LIMIT, r"too large .{0,160}(?:tokens per min(?:ute)?|tpm)"
)

SIGNALS: Final[tuple[Signal, ...]] = (
    # Our own machine or coordination, or a cancellation by the caller: no provider failed.
    row(
        Topic.LOCAL,
        R.NO_FAILOVER,
        r"no space left on device|disk quota exceeded|too many open files|read-only file system",
        r"enospc|edquot|erofs|emfile|enfile|enomem|eacces|eperm|enoent|eisdir",
        r"\[errno (?:1|2|12|13|21|23|24|28|30|122)\]",
        r"permissionerror|filenotfounderror|(?:is|not)adirectoryerror",
        r"writer claim lost|session takeover|server draining",
        r"(?:aborted|cancell?ed) by (?:the )?(?:user|caller|client)",
        r"(?:user|caller) aborted (?:a|the) request",
        r"cancellederror|disk (?:is )?full|database is locked",
    ),
    # The caller must send fewer or smaller images.
    row(
        Topic.IMAGE,
        R.NO_FAILOVER,
        rf"images?(?: {WORD}){{0,3}} exceeds?",
        r"images? (?:(?:is|are|was|were) )?too (?:large|big|small)",
        r"too many images|max(?:imum)? (?:allowed )?(?:number of )?images|at most \d+ images?",
        r"number of images",
    ),
    row(
        Topic.REFUSAL,
        R.NO_FAILOVER,
        r"content filter(?:ed|ing)?|content (?:management )?policy(?: violation)?",
        r"responsibleaipolicyviolation",
        r"(?:stop|finish|block)[\s_]?reason[\"']?:?\s?[\"']?"
        r"(?:refusal|(?:image )?safety|recitation|blocklist|spii)",
        r"敏感内容|内容安全|违规内容",
        r"violat(?:es|ed|ing) (?:(?:our|the) )?(?:usage|content|community) (?:polic(?:y|ies)|guidelines)",
        r"moderation blocked|content policy",
        r"content exists risk|sensitive content|contains? sensitive information",
        r"prohibited content|data inspection failed|safety system|requires moderation|refused by the model",
        r"(?:flagged|blocked|rejected) (?:by|due to|for) .{0,40}(?:moderation|safety|policy)",
    ),
    # The finish reason alone.
    row(Topic.REFUSAL, R.NO_FAILOVER, r"^(?:(?:image )?safety|recitation)$"),
    row(
        Topic.TLS,
        R.TLS_CERTIFICATE,
        CERTIFICATE_CODES,
        r"certificate verify failed|self[-\s]signed certificate|invalid peer certificate|x509",
        r"unable to (?:get|verify) .{0,30}(?:issuer|leaf|first) .{0,10}certificate",
        r"unable to get local issuer",
        r"certificate (?:has |is )?(?:expired|not trusted|not yet valid|revoked|unknown|invalid)",
        r"(?:hostname|altnames?).{0,60}certificate|certificate.{0,60}(?:hostname|altnames?)",
        r"hostname .{1,80} doesn'?t match|certificate is not valid for|invalid ssl certificate",
        r"alert (?:bad certificate|certificate (?:unknown|expired|revoked)|unknown ca)",
    ),
    # A vendor's command-line tool that is not logged in.
    row(
        Topic.LOGIN,
        R.AUTH,
        rf"run [`'\"]?(?:{WORD} )?(?:auth )?/?(?:login|setup-token)",
        r"not logged in|please log\s?in",
    ),
    # The history or a parameter of the request breaks a rule of the API.
    row(
        Topic.TRANSCRIPT,
        R.FORMAT,
        r"roles must alternate|incorrect role information|first message must use the .?user.? role",
        r"tool use[_.]ids?|tool call ids?|function call turn",
        r"without (?:an? )?(?:corresponding |following |matching )?.?tool result",
        r"preceed?ing message with .?tool calls",
        r"(?:content blocks?|messages?|content) must be non-?empty|must have non-?empty content",
        r"cannot end with trailing whitespace|string should match pattern|extra inputs are not permitted",
        r"invalid request format|(?:unknown|unsupported|unrecognized) parameters?",
        r"invalid (?:tool|function) schema",
        r"requested .{1,80} does not support",
        *terms.MISSING_FEATURE,
        *terms.REFUSED_SHAPE,
        r"malformed input request|no tool output found|function call outputs? .{0,40}(?:missing|required)",
        r"参数(?:错误|无效)",
    ),
    row(
        Topic.SESSION,
        R.SESSION_EXPIRED,
        r"(?:session|conversation)(?: with)?(?: id)?(?: [\w\-:\"']{6,64})? (?:was |is |has |could )?"
        r"(?:not (?:be )?found|does not exist|expired|invalid|no longer (?:exists|valid|available))",
        r"no (?:such )?(?:session|conversation)(?: found)?",
        r"(?:expired|invalid|unknown) (?:session|conversation)(?: id)?",
        r"会话(?:已)?(?:过期|失效|不存在)",
    ),
    row(
        Topic.MODEL,
        R.MODEL_NOT_FOUND,
        r"models?[:/\s_]{0,3}(?:\S{1,100}\s+)?(?:is |was |could )?(?:not (?:be )?found|does not exist)",
        r"(?:unknown|no such|nonexistent) model|invalid model(?: name| id| identifier)?",
        r"not a valid model(?: id| name)?|no endpoints found|model not exist",
        r"deployment.{0,40} (?:not found|does not exist)|no allowed providers",
        r"could not resolve the foundation model|model (?:id|identifier|arn) is invalid|on-demand throughput",
        r"model.{0,60} (?:has been|was|is) (?:deprecated|retired|decommissioned|shut down|removed)",
        r"model (?:decommissioned|deprecated|retired)",
        r"(?:requested model is|model) not supported",
        *terms.GONE_MODEL,
        r"模型不存在|(?:找不到|未找到)模型",
    ),
    # Zhipu sends its own error numbers with any HTTP status.
    row(Topic.BILLING, R.BILLING, rf"{ZHIPU_CODE}(?:1309|1311)", provider="zai"),
    row(Topic.BILLING, R.BILLING, r"余额不足|欠费", provider="zai"),
    row(Topic.VENDOR, R.AUTH, rf"{ZHIPU_CODE}(?:100[0-4]|1113)", provider="zai"),
    row(Topic.VENDOR, R.RATE_LIMIT, rf"{ZHIPU_CODE}(?:130[2-5]|1308|1310)", provider="zai"),
    # OpenRouter replaces upstream errors by one sentence, and limits the spending of single keys.
    row(Topic.BILLING, R.BILLING, r"key limit exceeded", provider="openrouter"),
    row(Topic.VENDOR, R.TIMEOUT, r"provider returned error", provider="openrouter"),
    row(Topic.VENDOR, R.OVERLOADED, r"modelnotreadyexception", provider="amazon-bedrock"),
    TOO_LARGE_FOR_A_MINUTE,
    # Google's quota. Its text refers free users to billing, but the quota refills by itself.
    row(
        Topic.REFILL,
        R.RATE_LIMIT,
        r"quota.{0,400}(?:retry in \d[\d.]*m?s?|retrydelay|quota metric)",
        r"quota exceeded for (?:quota )?metric",
        terms.USAGE_THAT_RESETS,
    ),
    row(
        Topic.CONTEXT,
        R.CONTEXT_OVERFLOW,
        r"request too large|request entity too large|payload too large|request exceeds the maximum size",
        r"(?:prompt|input|messages?|conversation|request)(?: is| are| was)? too (?:long|large)",
        rf"(?:input|prompt|total)(?: {WORD})?(?: tokens?| length)(?: count)? exceed(?:s|ed)?",
        r"exceed(?:s|ed|ing)? (?:the )?model(?:'s)? token limit|context window exceeds",
        r"greater than the context length",
        r"longer than .{0,30}context|longer than the max(?:imum)? (?:model|sequence|input) length",
        r"(?:prompt|inputs?)\W{0,2}[\s_]tokens .{0,40}must be (?:<=?|less than|at most)",
        rf"tokens?(?: {WORD}){{0,4}} exceeds? the (?:max|maximum|limit)",
        r"exceeds the (?:limit|maximum) of \d+ tokens",
        r"too many (?:input |prompt )?tokens:? (?:total|in (?:the|your))|range of input length",
        r"context (?:length|window|size|limit)(?: has been| was| is)? exceeded",
        r"exceed context size\w*|^context overflow:",
        r"exceed(?:s|ed|ing)? (?:the |your |this )?(?:model(?:'s)? )?(?:available |maximum |max )?context"
        r"(?: (?:length|window|size|budget|limit))?",
        r"(?:maximum|max) context length|maximum number of tokens|maximum (?:input|prompt) (?:length|tokens)",
        *terms.LONG_CONTEXT,
        r"(?:out of|no) room in .{0,40}context window|reduce the length of the (?:messages|prompt|input)",
        r"(?:上下文|输入|提示词?|prompt).{0,12}(?:过长|超长|超出|超过|超限)",
        r"(?:超出|超过).{0,8}(?:上下文|输入长度|token)|压缩上下文|上下文過長",
    ),
    # State of an earlier answer that the request repeats and the provider does not accept.
    row(
        Topic.REPLAY,
        R.FORMAT,
        r"previous response(?: with)?(?: id)?.{0,80}not found|previous_response_not_found",
        r"invalid .?signature.? in .?thinking|thinking.{0,60}cannot be modified|expected .?thinking",
        r"encrypted content.{0,60}(?:verified|decrypted|invalid)|invalid encrypted content|thought signature",
        r"item .{0,80}(?:required|expected) (?:following|reasoning) item|without its required",
        r"items? with id .{1,80} not found|reasoning content .{0,60}must be passed back",
    ),
    row(
        Topic.BILLING,
        R.BILLING,
        r"payment required|billing hard limit|hard limit reached|maximum allowed .{0,30}spending limit",
        rf"insufficient (?:{WORD} ){{0,4}}(?:credits?|quota|balance|funds)",
        r"credit balance|balance is too low|exceeded current quota error",
        r"(?:requires?|add|purchase|buy|need) (?:more |additional )?credits|all available credits|no credits",
        r"top up|plans? (?:&|and) billing|used up your points|in arrears",
        r"billing (?:is )?(?:not active|not enabled|disabled)",
        r"not (?:available|included) in your (?:current )?(?:plan|subscription)",
        r"not enough (?:credits?|balance|funds)",
        r"credits? (?:are |have been )?(?:exhausted|depleted|used up)|past due",
        r"balance (?:is )?(?:insufficient|exhausted|depleted)",
        r"requires a paid (?:plan|subscription)|subscription (?:is )?required",
        r"requires? billing to be enabled|enable billing|arrearage|account is in good standing",
        r"unpaid invoices?",
        *terms.SPENT_MONEY,
        r"overdue (?:balance|payments?|invoices?)|account overdue|budget (?:has been |was )?exceeded",
        r"free (?:tier|quota|allowance)(?: of the model)? (?:has been |is )?(?:exhausted|used up|over)",
        r"exceeded your (?:monthly )?included credits|can only afford|negative balance",
        r"no active subscription",
        r"subscription (?:has |is )?(?:expired|inactive|lapsed|cancell?ed)",
        r"(?:free )?trial (?:has |is )?(?:ended|expired|over)",
        r"余额不足|欠费|充值|餘額不足|残高(?:が)?不足|잔액(?:이)?\s?부족",
    ),
    # Entitlements of an account: permission with status 401 and 403, otherwise billing.
    row(
        Topic.CREDITS,
        R.BILLING,
        rf"(?:run|ran|running) out of credits|out of credits|need an? (?:{WORD} )?subscription",
    ),
    row(
        Topic.PERIODIC,
        R.RATE_LIMIT,
        rf"{PERIOD}(?:/{PERIOD})*(?: {WORD}){{0,2}} limits?|\d+[-\s]hours? limit|usage limits?",
        rf"{terms.ALLOWANCE}|request limit (?:reached|exceeded)",
        rf"(?:limit|quota) will reset|{terms.NO_QUOTA_LEFT}",
    ),
    row(
        Topic.RATE,
        R.RATE_LIMIT,
        r"rate limit(?:s|ed|ing)?|too many (?:concurrent )?(?:requests|tokens)|toomanyrequests\w*",
        r"throttl(?:ed|ing)|throttlingexception|rate exceeded|concurrency limit|slow down",
        r"quotas? (?:has been |was )?(?:exceeded|exhausted|reached)",
        r"exceed(?:s|ed|ing)? .{0,40}quotas?|out of quota",
        r"resource (?:has been )?exhausted|servicequotaexceededexception|model cooldown|cooling down",
        r"(?:requests|tokens) per (?:second|sec|minute|min|hour|day)|tpm|rpm",
        r"频率.{0,4}(?:限制|超限|过高|超过)|速率限制|(?:使用|次数).{0,2}上限|调用频率|限流|请求(?:数)?过多|过于频繁|并发.{0,6}(?:超|过|限)",
        r"配额|额度.{0,6}(?:用尽|不足|超)",
        r"過於頻繁|請求過多|レート制限|リクエストが多すぎ|요청\s?한도|요청이 너무 많",
    ),
    row(
        Topic.OVERLOADED,
        R.OVERLOADED,
        r"overload(?:ed|ing)|(?:server|system|service|engine|model) overload|capacity exhausted",
        r"(?:high|heavy) (?:demand|load|traffic)|high volume of requests",
        r"(?:at|over|no|insufficient|limited) capacity|capacity constraints",
        r"service (?:is )?(?:temporarily |currently )?unavailable",
        r"(?:server|engine|api|model) (?:is )?(?:currently |too )?busy",
        r"capacity exceeded|maximum pending requests",
        *terms.STARTING_MODEL,
        r"过载|负载过高|负载.{0,3}饱和|访问量过大|過載|過負荷|混み合って|과부하",
    ),
    row(
        Topic.SERVER,
        R.SERVER_ERROR,
        r"server_error|bad gateway",
        r"(?:finish |stop )?reason: error",
    ),
    # Internal faults of the provider that look like a broken connection: a retry helps.
    row(
        Topic.INTERNAL,
        R.TIMEOUT,
        r"internal server error|status:? internal|unknown error, \d{3}",
        r"error occurred while processing .{0,40}retry your request",
        r"内部(?:服务器?)?错误",
    ),
    row(
        Topic.TOKEN_REFRESH,
        R.AUTH,
        r"token refresh failed|(?:failed to|could not) refresh .{0,30}token|invalid grant|re-?authenticate",
    ),
    row(
        Topic.AUTH_PERMANENT,
        R.AUTH_PERMANENT,
        rf"keys?(?: {WORD}){{0,2}} (?:revoked|deactivated|deleted|disabled|suspended)",
        r"(?:revoked|deactivated|deleted|disabled) (?:api )?key",
        rf"(?:account|org(?:anization)?|workspace|project|user)(?: {WORD}){{0,3}}"
        r" (?:deactivated|deleted|disabled|suspended|banned|terminated|archived)",
        rf"(?:account|org(?:anization)?)(?: {WORD}){{0,2}} (?:locked|restricted)|access terminated",
        r"deactivated workspace|not allowed for this organization|reported as leaked",
        rf"(?:oauth |access )?token(?: {WORD}){{0,2}} revoked",
        r"consumer.{0,60} (?:has been )?suspended|consumer suspended",
        r"(?:账[号户]|密钥).{0,6}(?:停用|封禁|注销|冻结|禁用|吊销|删除|锁定)",
    ),
    row(
        Topic.AUTH,
        R.AUTH,
        r"(?:invalid|incorrect|missing|no|wrong|expired|bad|provide (?:an?|your|a valid))"
        r" (?:x-)?api[-_\s]?key(?: error)?",
        r"api[-_\s]?key (?:is )?(?:not valid|invalid|missing|required|expired|not found)|x-api-key",
        rf"(?:invalid|expired|missing) (?:{WORD} )?(?:access )?(?:token|credentials?)",
        r"no (?:auth |api |valid )?credentials",
        rf"(?:token|credentials?|key)(?: {WORD}){{0,3}} (?:expired|invalid)",
        r"could not (?:authenticate|validate|resolve) .{0,40}(?:api key|credentials?|token|authentication)",
        r"authentication(?: error| failed)?|unauthori[sz]ed|unauthenticated|not authori[sz]ed",
        r"forbidden|access[-_\s]?denied\w*|(?:location|region|country) (?:is )?not supported",
        r"(?:not|don.?t) have (?:access|permission)",
        r"permission (?:error|denied)|insufficient permissions?|missing scopes?|insufficient scope",
        r"bad credentials|unrecognizedclientexception",
        r"(?:expired|invalid)(?:token|signature|clienttokenid)(?:exception)?|incompletesignature",
        r"signature we calculated",
        r"endpoint or credentials|default credentials|determine credentials",
        r"(?:认证|鉴权|授权|身份验证)(?:失败|错误|异常)|未授权|无效的.{0,4}(?:令牌|密钥)|无权|没有权限|权限不足|(?:密钥|令牌).{0,6}(?:无效|错误|过期|不正确)",
    ),
    row(
        Topic.TIMEOUT,
        R.TIMEOUT,
        SOCKET_CODES,
        r"timed?[-_\s]?out|(?:read|connect|write|pool)timeout|deadline exceeded|deadline expired",
        r"connection error|connection (?:was )?(?:reset|aborted|lost|terminated)|network error",
        r"network request failed|fetch failed",
        r"socket hang up|other side closed|premature close|broken pipe|server disconnected",
        r"peer closed connection",
        r"connection(?:reset|refused|aborted|timeout)?error",
        r"(?:connect|read|remoteprotocol|brokenpipe)error|gaierror",
        r"\[errno (?:8|32|54|60|61|101|103|104|110|111|112|113|11001|-[235])\]",
        r"\[winerror 100(?:51|53|54|60|61|65)\]",
        r"name or service not known|temporary failure in name resolution|nodename nor servname",
        r"name resolution failed",
        r"dial (?:tcp|udp)|no such host|i/o timeout|unexpected eof|payload is not completed",
        r"clientpayloaderror",
        r"cannot connect to host|connect call failed|no route to host|network is unreachable",
        r"connection closed before",
        r"\[ssl:\s?\w+\]|violation of protocol|ssl handshake|tls handshake|handshake failure|ssleoferror",
        r"all connection attempts failed|incomplete chunked read|without sending (?:a response|any chunks)",
        r"(?:operation|request|stream|response) was (?:aborted|closed)|stream read error|goaway",
        *terms.CLOSED_STREAM,
        r"stream (?:ended|closed|disconnected) (?:before|without)"
        r" (?:completion|(?:a )?(?:terminal|finish|final|stop|done|message stop))",
        r"(?:finish |stop )?reason: (?:abort|network error|malformed response)",
        r"(?:网络|连接|请求|响应|服务).{0,4}(?:超时|异常|错误|中断|断开|重置)|超时|(?:服务|系统|服务器)繁忙|服务.{0,2}不可用",
        r"逾時|超時|連線(?:中斷|失敗|錯誤)|タイムアウト|接続(?:エラー|できません)|시간\s?초과|연결\s?오류",
    ),
    # Complete texts of wrappers that dropped the cause.
    row(Topic.TIMEOUT, R.TIMEOUT, r"^(?:llm )?request failed\.?$", r"^(?:(?:type)?error: )?terminated$"),
    row(Topic.SILENCE, R.NO_ERROR_DETAILS, r"no error details"),
    row(
        Topic.SILENCE,
        R.EMPTY_RESPONSE,
        r"empty response",
        r"(?:response|model|provider) (?:was empty|(?:returned|contained|had) (?:an empty|empty|no) \w+)",
        r"no (?:content|output) in (?:the )?response|did not return any (?:content|output|text)",
    ),
    row(Topic.SILENCE, R.UNKNOWN, r"unknown error"),
)
