"""Phrases about the provider's service: its models, its capacity, its faults and the connection."""

from typing import Final

from spawnmesh_model_router.domain.signal_terms import BE, CANNOT, INNER, NOT, WORD, follows, near

CERTIFICATE_CODES: Final = (
    r"cert_\w+|err_tls_cert\w*|err_cert\w*|unable_to_verify_leaf_signature|unable_to_get_issuer_cert\w*"
    r"|(?:depth_zero_)?self_signed_cert\w*|sslcertverificationerror|crl_\w+"
)
SOCKET_CODES: Final = (
    r"econn(?:reset|refused|aborted)|e(?:socket)?timedout|enotfound|eai_\w+|epipe|enet(?:unreach|reset"
    r"|down)|ehost(?:unreach|down)|eproto|eaddr\w+|und_err_\w+|err_(?:stream_premature_close|ssl_\w+"
    r"|http2_\w+)|err_(?:connection|name|network|internet|timed|address|proxy|socket|empty_response|quic"
    r"|tunnel)\w*"
)

LOCAL: Final = (
    r"no space left on device|disk quota exceeded|too many open files|read-only file system",
    r"enospc|edquot|erofs|emfile|enfile|enomem|eacces|eperm|enoent|eisdir",
    r"\[errno (?:1|2|12|13|21|23|24|28|30|122)\]",
    r"permissionerror|filenotfounderror|(?:is|not)adirectoryerror",
    r"writer claim lost|session takeover|server draining",
    r"(?:aborted|cancell?ed) by (?:the )?(?:user|caller|client)",
    r"(?:user|caller) aborted (?:a|the) request",
    r"cancellederror|disk (?:is )?full|database is locked",
)
"""Our own machine or coordination, or a cancellation by the caller: no provider failed."""

TLS: Final = (
    CERTIFICATE_CODES,
    r"certificate verify failed|self[-\s]signed certificate|invalid peer certificate|x509",
    r"unable to (?:get|verify) .{0,30}(?:issuer|leaf|first) .{0,10}certificate",
    r"unable to get local issuer|pkix path|valid certification path|ssl certificate (?:problem|error)",
    r"bad certificate|certificate.{0,80}(?:not trusted|unknown authority|untrusted)",
    rf"certificate (?:{BE} |has )?(?:expired|not trusted|not yet valid|revoked|unknown|invalid|untrusted)",
    r"(?:hostname|altnames?).{0,60}certificate|certificate.{0,60}(?:hostname|altnames?)",
    r"hostname .{1,80} doesn'?t match|certificate is not valid for|(?:invalid"
    r"|untrusted) (?:ssl )?certificate",
    r"alert (?:bad certificate|certificate (?:unknown|expired|revoked)|unknown ca)|unknown ca",
)

_SESSION: Final = r"session|conversation|thread"
SESSION: Final = (
    rf"(?:{_SESSION})(?: with)?(?: id)?(?: [\w\-:\"']{{6,64}})? (?:was |is |has |could )?"
    r"(?:not (?:be )?found|does not exist|expired|invalid|no longer (?:exists|valid|available)|ended)",
    rf"no (?:such )?(?:{_SESSION})(?: found)?|(?:expired|invalid|unknown) (?:session|conversation)(?: id)?",
    # A file that was uploaded for the conversation.
    r"access the file \S{1,80} or it may not exist|file \S{1,80} not found on container",
    r"会话(?:已)?(?:过期|失效|不存在)",
)

_ROUTE: Final = r"provider|endpoint|deployment|backend|channel|route|routing|upstream|mapping|handler"
_MODEL: Final = r"models?(?: or endpoint)?|engine|deployment|foundation model|inference profile"
# A thing that a model has or makes, and not the model.
_NOT_ITS: Final = (
    r"(?! (?:output|response|content|parameters?|config\w*|arguments?|settings?|input|data|behaviou?r"
    r"|credentials?"
    r"))"
)
_GONE: Final = (
    r"deprecated|deprecating|retired|decommissioned|discontinued|deactivated|sunset|shut.?down|removed"
    r"|end.of.(?:its.)?(?:life|support)|no longer (?:available|supported|served|offered|accessible"
    r"|exists?|active|hosted|provided|in service)|end of its life|legacy|phased out|withdrawn|taken"
    r" (?:down|offline)|obsolete|eol"
)
_NOT_HERE: Final = (
    rf"{NOT} (?:currently |yet |been )?(?:accessible|deployed|running|enabled|activated|allowed|active"
    r"|loaded|installed|registered|configured|recogni[sz]ed|valid|downloaded|hosted|permitted|served"
    rf"|offered|provided|whitelisted|listed|in (?:the|our|your) (?:{WORD} ){{0,2}}(?:list|catalog|models))"
    r"|inaccessible|unloaded(?!\?)|disabled|inactive|paused|offline|unknown|unsupported(?! (?:with|when|in))"
)
_NOT_NOW: Final = r"(?!.{0,80}(?:temporar|overload|try again|busy|capacity|retry|later))"
GONE: Final = (
    rf"(?:{_MODEL})(?: {INNER}){{0,6}} (?:{_GONE})|(?:{_MODEL})[^:]{{0,60}} {BE} (?:{_GONE})",
    r"(?:endpoint|api|https?://\S{1,100}) (?:is|are) no longer (?:available|supported|served)",
    rf"(?:{_GONE}).{{0,100}}(?:different|another|newer|other|supported|replacement|active) models?",
    r"model (?:decommissioned|deprecated|retired)|model requires a (?:newer|later|more recent) version"
    r"|does not support this model|version \S{1,30} or (?:newer|later) is required",
    r"models? (?:is |are |has been |was )?(?:disabled|unavailable for free|too large to be loaded)",
)
"""The provider no longer serves the model."""

NO_SUCH: Final = (
    r"(?:invalid|unknown|no\ssuch|unrecogni[sz]ed|nonexistent|incorrect)\smodel(?: name| id| identifier)?"
    rf"{_NOT_ITS}",
    rf"(?:{_MODEL}) \S{{1,100}} (?:{BE} |could )?(?:not (?:be )?found|{NOT} exist)(?! or)",
    r"error 410:? gone",
)
"""The name of the model is wrong for every caller."""

MODEL: Final = (
    # There is none of this name.
    rf"not found the (?:{_MODEL})|specified version does not exist|at .?model[-_\s]?id.? failed to satisfy",
    rf"(?:{_MODEL})[:/\s_]{{0,3}}(?:\S{{1,100}}\s+)?(?:{BE} |could )?"
    r"(?:not (?:be )?found|does(?: not|n.t) exist|not exist)",
    rf"(?:{_MODEL})(?: {INNER}){{0,3}} (?:not (?:be )?(?:found|resolved|located)|{NOT} exist)",
    rf"(?:unknown|no such|nonexistent|illegal|unavailable|invalid|unrecogni[sz]ed"
    rf"|unsupported) (?:{_MODEL}){_NOT_ITS}",
    r"invalid (?:target|route|deployment|engine) (?:name|id)",
    r"model \S{1,80} (?:resolve[sd]|map(?:s|ped)|routed?) to (?:an? )?(?:unsupported|unknown|missing)",
    # The parameter at fault, as OpenAI and its imitations name it.
    r"param['\"]:\s?['\"]model['\"]",
    rf"not a (?:valid|known|supported|recogni[sz]ed) (?:{_MODEL})|no endpoints found|no allowed providers",
    rf"{CANNOT} (?:find|resolve|locate|recogni[sz]e|route)(?: {INNER}){{0,4}} (?:{_MODEL})",
    r"there is no (?:such )?\W?model",
    # A proxy has nothing behind it for the name.
    rf"no (?:{WORD} )?(?:{_ROUTE})s? (?:\w+ ){{0,3}}for (?:the |this |that |requested |your )*\W?model",
    rf"no (?:{WORD} )?(?:{_ROUTE})s? (?:that |which |is |are |can |currently )*(?:serv\w+|hosts?|hosting"
    rf"|offer\w*)(?: {WORD}){{0,2}} model",
    r"(?:(?:not|cannot) (?:be )?found|not listed|missing|absent|unknown) (?:in"
    r"|from) (?:\w+ ){0,2}(?:model )?(?:catalog"
    r"|registry|models? list|list of models|available models|configured models|config model)\w*",
    rf"{NOT} match any (?:{WORD} ){{0,2}}models?|no models? match",
    r"no (?:\w+ )?models? (?:is |are |was |were )?(?:loaded|found|named|called"
    r"|available|with|matching|matches|match)",
    r"(?:(?:llm )?provider not provided|model (?:id|identifier|arn|name) is (?:invalid|not valid|unknown))",
    r"deployment.{0,40} (?:not found|does not exist)|on-demand throughput|modelnotfound\w*"
    r"|deploymentnotfound",
    rf"no model group|models? (?:{BE} )?not found|not found for account",
    # This account, place or API has not got it.
    rf"(?:models?|deployment){_NOT_NOW}(?: {INNER}){{0,3}} (?:{BE} )(?:currently )?(?:{_NOT_HERE})",
    rf"(?:{_MODEL}){_NOT_NOW} (?!{BE} )\S{{1,80}} (?:{BE} )?(?:currently )?(?:not (?:currently"
    rf" )?available|unavailable)",
    rf"(?:{_MODEL}){_NOT_NOW}(?: \S{{1,80}})? (?:{BE} )?(?:{NOT} (?:currently )?available|unavailable"
    rf"|not supported)"
    r" (?:in|for|on|to|with|by|via|through|under|when using)(?! (?:this model|tools|images))",
    rf"models? (?:{_NOT_HERE})|models?{_NOT_NOW} unavailable|could not find provider|unknown provider"
    rf"|model_not_available"
    rf"|model_not_supported|(?:requested model is|model) not supported",
    r"(?:model (?:\S{1,80} )?is|models (?:\S{1,80} )?are) not (?:currently )?supported(?! (?:with|when|in))",
    rf"model\W? (?:parameter |field )?is (?:invalid|not valid|incorrect)|model\W?(?: id\W?)?(?: \S{{1,80}})?"
    rf" has no (?:{WORD} ){{0,2}}(?:price|entry|provider|endpoint|deployment|route|channel)s?",
    rf"(?:unable|not able|not allowed|no permission) to (?:access|use)(?: {WORD}){{0,3}} models?",
    rf"endpoint(?: for)? \S{{1,80}} is not running|dedicated endpoint(?: {WORD}){{0,3}} not running",
    r"model is (?:unavailable for free|not accessible|too large to be loaded)|try pulling it first",
    r"(?:cannot|can.t|unable to) use (?:this|the|that) model|use case details have not been submitted"
    r"|not supported for (?:task|this environment)",
    r"(?:access to|use of) (?:this |the )?model (?:\S{1,80} )?(?:is )?(?:restricted|limited|gated)",
    r"模型.{0,30}(?:已下架|下架|停用|弃用|停止服务|无可用渠道|未部署|未启用|未授权|不可用)"
    r"|模型.{0,30}(?:不存在|未找到|已下线|不支持|未开通)|(?:找不到|未找到|不支持).{0,4}模型|没有可用的?模型",
)
"""The provider has no such model, it is gone, or this account cannot use it."""

OUTAGE: Final = (
    r"degraded (?:function|service|state|performance)|(?:is|are|currently) degraded",
    r"(?:under|down for|scheduled|planned) maintenance|(?:major |partial |service )outage",
    # A machine that broke down, and an answer of the server behind it.
    r"(?:model|engine|runner|server|worker|backend|process)(?: (?:has|was|have been))? (?:crashed|reloaded"
    r"|restarted)|returned (?:an? )?(?:http |status |code |error )*5\d\d|server connection error"
    # The page of a Python server that raised an error.
    r"|either the server is overloaded or there is an error",
)
"""The provider knows of its fault, whatever the status says."""

CRASH: Final = (
    r"internal server error|internal error (?:encountered|occurred)|an internal error|unhandled (?:exception"
    r"|error)|traceback|nonetype|object has no attribute|nil pointer|null pointer\w*|segmentation fault"
    r"|out of memory|cuda error|stack overflow|exit code|cannot connect to (?:host|server|upstream|backend)"
    r"|(?:failed to load|error loading|could not load)"
    r" (?:the )?model|[\"']backend error|unexpected error occurred",
    r"(?:worker|engine|runner|process|backend)(?: \w+){0,2} (?:died|exited|has terminated|was killed|failed)",
)
"""A fault in the words of the program that had it. A refused request is then no such thing."""

_SERVING: Final = (
    r"(?:models?|deployment|servers?|service|engine|endpoint|container|instance|worker|replica|system)"
)
OVERLOADED: Final = (
    r"overload(?:ed|ing)|(?:server|system|service|engine|model) overload|engineoverloaded\w*",
    r"(?:high|heavy|peak|increased|unusual|elevated|exceptional) (?:demand|load|traffic|usage|volume)"
    r"|high volume of requests|peak (?:load|hours)|spikes? in (?:demand|traffic|requests|usage|load)",
    rf"(?:at|over|no|insufficient|limited|maximum|max|full|not enough|lack of) (?:{WORD} )?capacity"
    r"|capacity (?:constraints?|limits?|exhausted|exceeded|reached|is full|temporarily)",
    near(
        r"capacity|resources?|gpus?|gpu memory|workers?|slots?",
        r"exhausted|busy|not enough|insufficient|limited",
        3,
    ),
    r"no (?:available |free |idle |healthy )?(?:workers?|slots?|gpus?|resources|instances?|replicas?|servers?"
    r"|nodes?|pods?)(?: \w+)? available|too many (?:users|visitors)"
    r"|no (?:available|free|idle|healthy) (?:workers?|slots?|gpus?|resources|instances?|replicas?|servers?"
    r"|nodes?|pods?)",
    r"(?:service|model|server|endpoint|provider|api|engine"
    r"|deployment)(?: \S{1,60})? (?:is )?(?:temporarily |currently )(?:unavailable|not available)"
    r"|service unavailable|temporarily unavailable",
    r"(?:service|endpoint|server|api|engine) (?:is )?unavailable|serviceunavailable(?:exception|error)",
    r"(?:servers?|engine|api|models?|services?|systems?|provider|workers?|backends?|gpus?|slots?|replicas?"
    r"|nodes?|instances?) (?:is |are )?(?:currently |too |all )?busy|out of capacity",
    r"(?:too busy|busy,? (?:please )?(?:try|retry|wait))|maximum pending requests|(?:queue|cache|buffer"
    r"|pool) (?:is )?(?:full|exceeded|exhausted)",
    r"(?:pending|queued) requests? (?:limit )?exceeded|processing too many requests — please",
    rf"(?:{_SERVING})(?: {WORD}){{0,3}} (?:loading|warming up|starting(?: up)?|initiali[sz]ing|booting"
    r"|waking up|spinning up|scaling(?: up)?|provisioning)(?! (?:failed|error))|cold start|^loading model",
    rf"(?:{_SERVING})(?: {WORD}){{0,3}} (?:being|not yet) (?:loaded|ready|started|provisioned)|not ready"
    r" (?:yet|for inference)",
    r"no (?:upstream|backend|worker|server|host)s? (?:is |are )?(?:currently )?available"
    r"|no (?:healthy|live|ready|alive|active) (?:upstream|backend|host|server|instance|replica|node|worker"
    r"|endpoint|pod)s?|processing too many requests",
    r"scal(?:ed|ing) (?:to|from) zero|(?:bedrock|service|server) is unable to (?:process"
    r"|handle) your request",
    r"过载|负载过高|负载.{0,3}(?:饱和|已满|过大)|访问量过大|過載|過負荷|混み合って|과부하"
    r"|资源.{0,4}(?:不足|紧张)|算力不足|繁忙期",
)
"""The provider has no capacity now."""

INTERNAL: Final = (
    r"internal server error|status:? internal|unknown error, \d{3}",
    r"error occurred while processing .{0,40}retry your request",
    r"内部(?:服务器?)?错误",
)
"""Internal faults of the provider that look like a broken connection: a retry helps."""

_MACHINE: Final = (
    r"servers?|systems?|services?|engine(?:core)?|backend|model|runner|llama|process|upstream|provider"
    r"|workers?|api|inference|generation|runtime|cuda|gpu|pipeline|loop"
)
_BROKE: Final = (
    r"had an error|(?:encountered|experienced|hit|raised|threw|returned) an? (?:\w+ ){0,2}(?:error"
    r"|condition|issue|problem|exception|failure)|crashed|died|dead|exited|has terminated|errored"
    r"|failed to (?:load|start|run)|(?:internal|unexpected) (?:error|failure|exception)"
    r"|error: out of memory|out of memory|not running|no longer running|encountered an issue|failure"
)
FAULT: Final = (
    follows(_MACHINE, _BROKE, 4),
    r"(?:unexpected|internal|server|inference|backend|runtime) (?:system )?(?:error|failure"
    r"|exception)(?! (?:token|role|message))|something (?:went wrong|broke|failed)|(?:model|inference"
    r"|job|query|task) execution failed|(?:nccl|gpu|cudnn|hip|rocm|metal|vulkan|ggml) error"
    r"|unexpectedly (?:stopped|exited|terminated|quit)|(?:could not|cannot|failed to) (?:load|decode)"
    r"|decode failed|problem on (?:our|the)|out of memory|segmentation fault|oom",
    r"(?:inference|generation|prediction|completion|backend|provider|model|process)(?: api)?(?: request"
    r"| call)?"
    r" failed(?!\W{1,3}bad request)|name .?\w+.? is not defined|api request failed"
    r"|failed to create (?:an? |the )?stream"
    r"|failed to (?:process|parse|read|decode) (?:\w+ ){0,3}response"
    r"|failed to generate (?:content|text|an? |response|completion)\w*(?!: request contains)"
    r"|failed to (?:start|launch|run|initiali[sz]e|load)|failed to allocate|assert(?:ion)? failed|cuda error"
    r"|failed to load (?:the )?model|error loading model|enginedeaderror|enginecore|error was encountered",
    r"returned an? (?:invalid|unexpected|malformed|unreadable) response|model produced invalid"
    r"|upstream(?: \w+){0,2} (?:error|failed|failure)|unexpected condition",
    r"error (?:on|from|in) (?:our|the) (?:side|end|server|upstream|provider|backend)|do request failed",
    r"more system memory|(?:requires|need) more memory|(?:server|service|upstream|backend) error",
    r"error (?:\w+ ){0,2}(?:processing|making|generating|running|executing|handling|streaming|serving)",
    rf"(?:unexpected|invalid|malformed)(?: {WORD}){{0,3}} in (?:the )?response(?! format)"
    r"|(?:chunk|stream|response) pars(?:e|ing) (?:error|failure)"
    r"|validation errors? for \w*(?:chunk|response|completion|result|output)\w*",
    r"无可用渠道|(?:调用|生成|推理)失败|服务器?(?:错误|异常)|系统(?:错误|异常)|上游.{0,6}(?:错误|异常|失败)",
)
"""The provider had a fault of its own."""

_ADVERB: Final = r"was|is|has been|got|has|were|unexpectedly|prematurely|abruptly|remotely|already"
_STREAM: Final = (
    r"(?:event |sse |upstream |response |server |client |peer )?(?:stream|connection|socket|transport"
    r"|websocket)|response body|message body|upstream(?: response| request)?|peer"
)
_CLOSED: Final = (
    r"closed|ended|terminated|disconnected|aborted|reset|broken|broke|broke off|interrupted|dropped|lost"
    r"|cut off|truncated|incomplete|hung up|stalled|termination|reset by peer|refused|timed out"
)
TIMEOUT: Final = (
    SOCKET_CODES,
    r"timed?[-_\s]?out|(?:read|connect|write|pool)timeout|timeout\w*|deadline",
    rf"{NOT} (?:respond|answer|reply|generate|produce|finish|complete)(?: {WORD}){{0,6}} (?:in time"
    rf"|within|before|after)|idle (?:for|timeout|too long)|no data (?:received|for)|took too long"
    rf"|taking too long"
    r"|no response (?:from (?:the )?(?:server|upstream|provider|host|api))|incomplete\s?message"
    rf"|no response (?:after|within)",
    rf"(?:{_STREAM})(?: (?:{_ADVERB})){{0,3}} (?:{_CLOSED})",
    rf"(?:{_CLOSED}) (?:the |by |from )?(?:upstream |remote |server |an? )?(?:stream|connection|socket|peer)",
    r"disconnect/reset before headers|upstream connect error|unexpected end of (?:stream|file|data|json)\w*",
    r"premature(?:ly)? (?:end|close[ds]?)|before (?:receiving )?(?:a |the )?response completed?",
    r"stream (?:ended|closed|disconnected) (?:before|without) (?:completion|(?:a )?(?:terminal|finish"
    r"|final|stop|done|message stop))|before message stop",
    r"connection (?:error|failed|problem|issue|failure|was |reset|aborted|lost|terminated|closed before)"
    r"|connection(?:reset|refused|aborted|timeout)?error|network (?:error|issue|problem|failure"
    r"|request failed)",
    rf"{CANNOT} (?:connect|reach|establish|fetch|communicate|resolve (?:host|address))|fetch failed"
    rf"|load failed",
    r"transport\s?error|reason: :?(?:closed|timeout|nxdomain)|request to \S+ failed|socket hang up"
    r"|other side closed|broken pipe|server disconnected|client disconnected",
    r"(?:connect|read|remoteprotocol|brokenpipe|protocol)error|gaierror|apiconnectionerror",
    r"\[errno (?:8|32|54|60|61|101|103|104|110|111|112|113|11001|-[235])\]",
    r"\[winerror 100(?:51|53|54|60|61|65)\]",
    r"name or service not known|temporary failure in name resolution|nodename nor servname|dns (?:error"
    r"|lookup)",
    r"name resolution failed|no address associated|failed to lookup address|(?:unknown|resolve)\s?host\w*",
    r"dial (?:tcp|udp)|no such host|i/o timeout|unexpected eof|payload is not completed|: eof|end of file",
    r"(?:closed|broken)resource\w*|err_incomplete\w*|clientpayloaderror|cannot connect to host"
    r"|connect call failed|no route to host|network is unreachable",
    r"\[ssl:\s?\w+\]|violation of protocol|ssl handshake|tls handshake|handshake failure|ssleoferror",
    r"all connection attempts failed|incomplete chunked read|without sending (?:a response|any chunks)",
    r"(?:operation|request|stream|response) was (?:aborted|closed)|stream read error|goaway",
    r"(?:http/?2|protocol|decode|decoding) error|stream id|empty reply|error (?:sending request|decoding"
    r"|reading)",
    r"max(?:imum)? retries exceeded|failed after \d+ attempts|tunnel(?:ing)? (?:socket|failed)|proxy error",
    r"(?:finish |stop )?reason: (?:abort|network error|malformed response)",
    r"(?:网络|连接|请求|响应|服务).{0,4}(?:超时|异常|错误|中断|断开|重置)|超时|(?:服务|系统|服务器)繁忙"
    r"|服务.{0,2}不可用",
    r"逾時|超時|連線(?:中斷|失敗|錯誤)|タイムアウト|接続(?:エラー|できません)|시간\s?초과|연결\s?오류",
)
"""No answer in time: the connection or the answer broke off."""

GAVE_UP: Final = (
    r"(?:request|upstream|connection|operation|call|generation|prediction|inference|model) (?:has "
    r"|was )?timed"
    r" out|took too long|deadline exceeded|connection (?:refused|aborted|closed|lost)|socket hang up",
)
"""A gateway refuses the request because it had no answer in time."""

_NOTHING: Final = r"(?:an? )?(?:empty|blank|no|zero|null)(?: or \w+)?"
_OUTPUT: Final = (
    r"(?:\w+ )?(?:contents?|outputs?|responses?|messages?|text|answers?|choices|completions?|candidates?"
    r"|parts)"
)
EMPTY: Final = (
    r"empty (?:or \w+ )?(?:response|completion|answer|output|stream|reply|choices)|(?:response|model"
    r"|provider) was empty",
    rf"(?:returned|contained|had|has|generated|produced|sent|gave|received|got) {_NOTHING} {_OUTPUT}",
    rf"no (?:{_OUTPUT}) (?:in (?:the )?response|(?:was |were )?(?:generated|returned|produced|received"
    rf"|provided))",
    rf"{NOT} (?:return|provide|produce|contain|generate|include) any {_OUTPUT}",
    r"no valid (?:tool call or )?(?:response|candidates?) (?:generated|returned)",
    r"(?:no|missing|without) choices"
    r"|returned nothing|no data returned|(?:response|completion|output) (?:is|was) (?:none|null|undefined)"
    r"|no generations? found",
    r"(?:response|completion|output|answer|message\.content)(?: text| content)? (?:(?:is|was|came back) )?"
    r"(?:empty|blank"
    r"|null)",
)
"""The model returned no content."""
