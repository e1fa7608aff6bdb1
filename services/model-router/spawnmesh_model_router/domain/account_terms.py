"""Phrases about the account and its credential: money, allowances, rates and permissions."""

from typing import Final

from spawnmesh_model_router.domain.signal_terms import CANNOT, HAVE_NOT, NOT, PERIOD, WORD, follows, near

_MONEY: Final = (
    r"credits?|(?:account |wallet |remaining |prepaid |available )?balance|funds|money|prepayment|wallet"
    r"|prepaid \w+|resource package|(?:token|credit|prepaid) (?:package|pack|bundle)"
)
_SPENT: Final = (
    r"insufficient|not enough|not sufficient|isn.t enough|exhausted|depleted|used up|too low|negative"
    r"|below|no (?:more|remaining|available)|expired|would exceed|empty|r[au]n(?:ning)? out(?! of credits)"
    r"|runs out|drained|all consumed|fully (?:used|consumed)|zero|lacking|deficit|out of(?! credits)"
    rf"|{HAVE_NOT}(?: enough| sufficient| any)"
)
_QUOTA: Final = r"(?:user |token |account |free |prepaid )?quotas?"
BILLING: Final = (
    near(_MONEY, _SPENT, 4),
    rf"(?:insufficient|not enough|no (?:more |remaining )?)(?: {WORD}){{0,2}} {_QUOTA}",
    rf"insufficient (?:{WORD} ){{0,4}}(?:credits?|quota|balance|funds)",
    rf"{_QUOTA} (?:is |are )?(?:insufficient|not enough|not sufficient)",
    r"credits?\s?error|(?:no|zero) (?:credits?|balance|funds)|credit balance|balance is too low"
    r"|negative balance",
    r"(?:need|have|must) (?:to )?(?:purchase|buy|subscribe)|(?:requires?|add|purchase|buy|need) (?:more "
    r"|additional )?(?:credits|funds)|all available credits",
    r"exceeded your (?:monthly )?included credits|credit limit (?:exceeded|reached)|can only afford",
    r"exceeded current quota error|top up|recharge your|plans? (?:&|and) billing|used up your points",
    # An invoice that is not paid, and a way to pay that is missing.
    r"payment required|in arrears|arrearage|past due|account is in good standing|unpaid|delinquen\w+",
    r"overdue (?:balance|payments?|invoices?)|(?:account|payment|invoices?) (?:is )?overdue"
    r"|failure to pay|failed payments?|suspended,? .{0,40}(?:spend|pay|bill|balance|credit|invoice)\w*",
    r"(?:invoice|payment|card)(?: method| hold)? (?:is |was |has been )?(?:declined|failed|missing)",
    near(
        r"payment methods?|credit cards?|billing (?:account|information|details|profile)",
        r"required?|valid|no|missing|on file|not linked|not found|closed|disabled|inactive|suspended",
        3,
    ),
    r"add (?:an? )?(?:valid )?(?:payment method|credit card) to (?:continue|use|access|proceed|keep)"
    r"|out of (?:funds|money|balance)",
    r"billing hard limit|hard limit reached|maximum allowed .{0,30}spending limit|billing limit",
    r"billing (?:is |has )?(?:not (?:been )?)?(?:not active|not enabled|disabled|enabled on|inactive)",
    r"requires? billing to be enabled|(?:enable|activate|set up|check your) billing",
    r"(?:outstanding|unsettled|unpaid|open) (?:\w+ )?(?:invoices?|balance|payments?|debts?|bills?|amount"
    r"|dues|charges|fees)|included credits",
    r"cost.{0,60} exceeds? (?:your |the )?(?:\w+ )?(?:quota|balance|budget)",
    rf"budget (?:limit )?(?:has been |was |is )?(?:exceeded|exhausted)|over budget"
    rf"|exceeded(?: {WORD}){{0,3}} budget",
    r"exceededbudget|budgetexceeded\w*",
    # A plan that does not contain the model or the API.
    r"not (?:available|included|supported|enabled|accessible|offered) (?:in|on|with|for|under|by) "
    rf"(?:your |the |this |a )?(?:{WORD} ){{0,2}}(?:plans?|subscriptions?|tier)",
    r"(?:requires?|need|needs|without|have|has|no) (?:an? |any )?(?:active |paid |valid |higher "
    r"|current )*(?:paid plan|(?:active|paid|valid|current) subscription|(?:pro|plus|max|team|enterprise"
    r"|paid) plan)",
    rf"(?:requires?|needs?) (?:an? )?(?:paid|premium|higher|pro|plus|active) (?:{WORD} ){{0,2}}(?:plan|tier"
    r"|subscription|account)|billing (?:quota|cap)",
    r"requires? an? (?:\w+ )?subscription|subscription (?:is )?(?:required|needed)|no active subscription",
    r"(?:subscription|membership|package|plan|licen[cs]e) (?:has |is |has been |was )?(?:expired|inactive"
    r"|lapsed|cancell?ed|ended|not active|paused)",
    r"upgrade to (?:a )?(?:paid|pro|plus|premium)\b(?: \w+)? (?:plan |account |tier "
    r"|subscription )?(?:to|for) (?:access|use|continue)",
    r"(?:free )?trial (?:period )?(?:has |is )?(?:ended|expired|over)",
    r"free (?:tier|quota|allowance)(?: of the model)? (?:has been |is )?(?:exhausted|used up|over)"
    r"|free allocated quota (?:has been |is )?exceeded",
    r"extra usage,? not (?:your )?plan limits|(?:out of|add|buy|enable|draws? from"
    r"|requires?) (?:your )?extra usage|extra usage is required",
    r"(?:免费|用户|令牌|剩余)额度.{0,6}(?:用尽|耗尽|用完|不足)|余额不足|欠费|充值|餘額不足"
    r"|残高(?:が)?不足|잔액(?:이)?\s?부족|账户余额|套餐.{0,6}(?:到期|过期|不支持)"
    r"|预扣费|剩余额度|余额.{0,6}(?:用完|用尽|耗尽|为零|过低)|未付费|(?:账单|费用).{0,4}(?:未支付|逾期)",
)
"""Money is used up, a payment failed, or the account's plan does not contain the model."""

PLAN: Final = (
    r"upgrade (?:your |to (?:an? |the )?)(?:\w+ )?(?:plan|subscription|account|tier)|paid plans?",
    rf"(?:plan|subscription|tier)s? (?:\w+ )?{NOT} (?:include|allow|support|cover|have)",
    rf"(?:access|usage|api)(?: {WORD}){{0,3}} not included|plan (?:only )?includes",
    r"(?:please|to) (?:purchase|buy|recharge|pay|subscribe)|renew your (?:plan|subscription)"
    r"|pay[-\s]as[-\s]you[-\s]go|adding funds"
    r"|(?:please|must|need to) add (?:an? |your )?(?:valid )?(?:payment method|credit card|billing)"
    r"|unpaid bill",
    r"(?:out of|no) credit|(?:insufficient|not enough) \w+ in (?:your |the )?(?:wallet|account|balance)",
)
"""Another plan would allow the call."""

CREDITS: Final = (rf"(?:run|ran|running) out of credits|out of credits|need an? (?:{WORD} )?subscription",)
"""Entitlements of an account: permission with status 401 and 403, otherwise money."""

TOO_LARGE_FOR_A_MINUTE: Final = r"too large .{0,160}(?:tokens per min(?:ute)?|tpm)"
"""The request exceeds the tokens of a minute. Another model may have a higher limit."""

REFILL: Final = (
    # Google's quota. Its text refers free users to billing, but the quota refills by itself.
    r"quota.{0,400}(?:retry in \d[\d.]*m?s?|retrydelay|quota metric)",
    r"quota exceeded for (?:quota )?metric|resource exhausted.{0,300}exceeded your current quota"
    r"|exceeded your current quota.{0,400}resource exhausted",
    r"quota.{0,600}(?:quota\s?metric|quota\s?failure|docs/rate-limits)",
    r"out of extra usage.{0,40}resets?|in-flight requests",
    r"usage limit reached.{0,40}(?:purchase|buy|add)",
    rf"{PERIOD} (?:cost|usage) limit|每[日天周月].{{0,4}}(?:费用|用量|使用|消费).{{0,4}}(?:限制|上限|限额)",
    # The text offers more money, but the limit ends by itself.
    rf"(?:usage|rate|{PERIOD}|hours?|plan) limit.{{0,300}}try again (?:at|in|after|on) \d",
    rf"{PERIOD}(?: {WORD}){{0,2}} tokens? (?:limit|quota|allowance)",
    r"tokens? (?:limit|quota)(?: of \d\S*)? per (?:min(?:ute)?|hour|day|week|month)",
)
"""A quota that fills up again, whatever else the text says."""

_USED: Final = r"hit|reached|exceeded|used(?: up)?|exhausted|run out of|ran out of|over"
PERIODIC: Final = (
    rf"{PERIOD}(?:/{PERIOD})*(?: {WORD}){{0,3}} (?:limits?|quotas?|allowance|allocation|cap)",
    r"\d+[-\s]hours? limit|usage (?:limits?|cap|quota)|spend(?:ing)? (?:limit|cap)",
    rf"(?:{_USED}) (?:all of )?your(?: {WORD}){{0,4}} (?:limits?|allowance|allocation|usage|quota)",
    rf"(?:{_USED}) the limits? of your (?:{WORD} )?plan",
    r"(?:limit|quota)s? (?:will |to )?(?:resets?|refresh|renews?)",
    rf"no(?: {WORD}){{0,2}} available (?:with|that have) quota",
    r"used (?:up )?all (?:of )?your (?:\w+ )?(?:requests|messages|tokens|calls)",
)
"""An allowance that renews is used up."""

_CALLS: Final = (
    r"(?:api |model )?(?:requests?|calls?|queries)|messages|tokens|connections|sessions|generations?|jobs"
)
THROTTLED: Final = (
    r"rate[-\s_]?limit(?:s|ed|ing|er)?|too many (?:concurrent |simultaneous )?(?:requests|tokens|calls"
    r"|connections|messages|attempts)",
    r"toomanyrequests\w*|ratelimit\w*|throttl(?:ed|ing|e)|throttlingexception|rate exceeded|slow down",
)
"""The provider says that it limits a rate."""

LIMITED: Final = (
    r"rate[-\s_]?limit(?:s|ed|ing)?|too many (?:concurrent )?requests|throttl(?:ed|ing|e)",
    # In words: a code with a quota in it is often about a permission.
    r"quotas?\s(?:is\s|was\s|has\sbeen\s|limit\s)?(?:exhausted|exceeded|reached|used\sup)|限速|限流"
    r"|请求(?:数)?过多|频繁",
)
"""A rate is limited, in a text that names no missing capacity."""

RATE: Final = (
    r"concurrency (?:limit|quota)|(?:request|api|call) (?:rate|frequency)|ratequota|limit_requests",
    rf"(?:max(?:imum)?|limit|number)(?: of| on)?(?: {WORD}){{0,2}} (?:concurrent|parallel|simultaneous)",
    rf"(?:{_CALLS}) (?:per|/|an?|within (?:one|an?)|in (?:one|an?)) "
    r"(?:second|sec|minute|min|hour|hr|day|week|month|user|organization|account|key|project)",
    r"max(?:imum)? (?:organization |account )?(?:number of requests|concurrency|rpm|tpm|rpd|tpd)",
    r"(?:tpm|rpm|rpd|tpd|qps|rps|itpm|otpm)",
    near(r"quotas?", r"exceed(?:s|ed|ing)?|exhausted|reached|used up|out of|depleted|over", 6),
    rf"no (?:{WORD} )?(?:deployments?|accounts?|keys?) available.{{0,80}}\b(?:try again|retry|cool)",
    r"resource (?:has been )?exhausted|servicequotaexceededexception|model cooldown|cooling down",
    rf"(?:{_CALLS})(?: {WORD}){{0,2}} limit (?:has been |is |was )?(?:reached|exceeded|hit)",
    rf"limited to \d[\d,]*(?: {WORD}){{0,3}} (?:per|/|an?)\s?\w+",
    rf"(?:{_USED}) (?:the |its |a )?(?:{WORD} ){{0,2}}(?:requests?|calls?) (?:limit|quota)",
    r"频率.{0,4}(?:限制|超限|过高|超过)|速率限制|频繁|(?:使用|次数).{0,2}上限|调用频率|限流"
    r"|请求(?:数)?过多|过于频繁|并发.{0,6}(?:超|过|限)",
    r"配额|额度.{0,6}(?:用尽|不足|超)|速率.{0,6}(?:超|上限|限制)|限速|达到.{0,10}上限",
    r"過於頻繁|請求過多|レート制限|リクエストが多すぎ|요청\s?한도|요청이 너무 많",
)
"""Too many requests or tokens, or a quota is used up."""

_SHUT: Final = r"suspended|banned|terminated|deactivated|disabled|revoked|blocked|restricted|deleted|closed"
_PARTY: Final = r"account|org(?:anization|anisation)?|workspace|project|user|team|subscription"
BANNED: Final = (
    rf"(?:{_PARTY}|access|key)(?: {WORD}){{0,6}} (?:{_SHUT}).{{0,120}}"
    r"(?:violat|abuse|misuse|fraud|terms of (?:service|use)|suspicious|unusual)\w*",
    rf"(?:violat|abuse|misuse)\w*.{{0,100}}(?:{_PARTY}|access|key)(?: {WORD}){{0,3}} (?:{_SHUT})",
)
"""The account is closed because of its conduct. The text may look like that of a refused prompt."""

AUTH_PERMANENT: Final = (
    rf"keys?(?: {WORD}){{0,2}} (?:revoked|deactivated|deleted|disabled|suspended|blocked|leaked|banned)",
    r"(?:revoked|deactivated|deleted|disabled|blocked|suspended) (?:api |access )?(?:key|token)",
    rf"(?:{_PARTY})(?: {WORD}){{0,3}}"
    r" (?:deactivated|deleted|disabled|suspended|banned|terminated|archived|blocked)",
    rf"(?:account|org(?:anization)?)(?: {WORD}){{0,2}} (?:locked|restricted|closed)",
    r"(?:suspended|banned|deactivated|disabled|blocked) (?:account|organization|user|workspace|project)",
    r"access (?:was |has been |is |were )?(?:permanently )?(?:terminated|revoked)|permanently (?:revoked"
    r"|banned)",
    rf"(?:{_PARTY})(?: has been| was| is)? denied access",
    r"deactivated workspace|not allowed for this organization|reported as leaked",
    rf"(?:oauth |access |refresh )?token(?: {WORD}){{0,2}} revoked|token revoked",
    r"consumer.{0,60} (?:has been )?suspended|consumer suspended|disabled (?:claude )?subscription access",
    r"(?:账[号户]|帐[号户]|用户|密钥|令牌).{0,6}(?:停用|封禁|封号|封停|注销|冻结|禁用|吊销|删除|锁定)",
)
"""The account or the credential is closed for good."""

LOGIN: Final = (
    rf"{CANNOT} find (?:a|the) secret",
    rf"run [`'\"]?(?:{WORD} )?(?:auth )?/?(?:login|setup-token)",
    r"(?:oauth|login|auth|sso) session (?:has |is )?expired|failed to authenticate|not logged in"
    r"|please (?:re-?)?(?:log\s?in|sign\s?in)|(?:sign|log) in (?:again|to continue)",
    r"(?:key|token|team|user)(?: is| was)? not (?:allowed|permitted|authori[sz]ed) to (?:access|use|call)",
)
"""A login is missing, or the credential may not use the model."""

REGION: Final = (
    r"(?:location|region|country|territory|countries) (?:is |are )?not supported|unsupported (?:country"
    r"|countries|regions?)",
    r"not (?:currently )?(?:available|supported|accessible) in your (?:country|region|location|area"
    r"|territory)",
)
"""The provider does not serve the place of the caller."""

TOKEN_REFRESH: Final = (
    rf"token refresh failed|{CANNOT} refresh .{{0,30}}token|invalid grant|re-?authenticat(?:e|ion)",
)

_CREDENTIAL: Final = (
    r"(?:x-)?(?:\w{1,30}[-_])?(?:api|auth)[-_\s]?keys?|apikey|credentials?|(?:access|bearer|oauth|auth|api|id"
    r"|proxy|session|user|jwt|github|copilot|ide|security|server)[-\s_]?tokens?|authorization(?: header"
    r"| token)?|virtual key|subscription key|auth header|authentication (?:token|credentials?|header|method)"
)
_UNUSABLE: Final = (
    r"invalid|incorrect|wrong|missing|expired?|not valid|not found|unset|not set|isn.?t set|not provided"
    r"|bad|required|rejected|refused|no|empty|malformed|mismatch|not configured|unknown|unauthori[sz]ed"
    rf"|{NOT} (?:provide|have|find|include|match)|must be (?:set|provided)|{CANNOT}"
    r" (?:locate|load|find|resolve|validate|verify|determine|authenticate)|not (?:supported|accepted"
    r"|recogni[sz]ed|been provided|specified|authori[sz]ed)|expected|provide (?:an?|your|a valid)"
)
_ACT: Final = r"access|use|invoke|call|perform|make|view|execute|send|create|read"
AUTH: Final = (
    near(_CREDENTIAL, _UNUSABLE, 3),
    r"valid (?:\w+ )?(?:token|key|credentials?) (?:is |are )?(?:required|needed)|api[-_\s]?key error"
    r"|(?:token|credentials?)(?: \S{1,40}){0,6} expired|(?:token|key) (?:is |seems )?(?:invalid|not valid)",
    r"(?:invalid|expired|incorrect|unknown) (?:token|signature|clienttokenid|key)(?:exception)?(?! in json)",
    r"authentication(?: error| failed| fails)?|not authenticated|signature (?:verification"
    r"|validation) failed|unauthori[sz]ed|unauthenticated|not authori[sz]ed|authori[sz]ation (?:failed"
    r"|error|required)",
    rf"{CANNOT} authenticate|{NOT} (?:logged|signed) in",
    r"forbidden|access[-_\s]?denied\w*|access (?:is |to .{1,60} )?(?:denied|blocked)",
    rf"{NOT} (?:allowed|permitted|entitled|eligible|authori[sz]ed) (?:to|for) (?:{_ACT})",
    rf"(?:you|user|account|client|team|project|caller)(?: are| is|.re)? {NOT} (?:allowed|permitted|entitled)",
    rf"only authori[sz]ed for|{NOT} have (?:the )?(?:\w+ )?(?:access|permissions?)|no access to",
    r"operation (?:is )?not (?:allowed|permitted)",
    r"permission[-_\s]?(?:error|denied)|(?:insufficient|missing|sufficient|required) permissions?"
    r"|missing scopes?|insufficient scope|insufficient authentication scopes",
    rf"(?:{_ACT}) permission|lacks? (?:the )?(?:required )?(?:permission|scope|role)s?|user not found",
    # The origin of the caller.
    follows(r"(?:requests? from|referr?er|ip(?: address)?|origin)", r"blocked|not allowed|not permitted", 6),
    # An API that the account has to enable or to accept first.
    r"has not been used in project|service disabled|unregistered callers|callers? without established",
    r"(?:accept|agree to|acceptance of) (?:the )?(?:\w+ )?terms|terms (?:of use )?(?:acceptance|required)",
    r"(?:check|verify|update|set|configure|enter|supply|specify) (?:your |the |an? "
    r"|valid )*(?:\w+[\s_-])?(?:api[-_\s]?key|credentials?)(?! and (?:your )?(?:network|internet"
    r"|connection))|must be (?:authenticated|logged in|signed in)",
    r"bad credentials|unrecognizedclientexception|incompletesignature|signature we calculated",
    r"(?:expired|invalid)(?:token|signature|clienttokenid)(?:exception)?",
    r"endpoint or credentials|default credentials|determine credentials",
    r"(?:认证|鉴权|授权|身份验证)(?:失败|错误|异常)|未授权|无效的.{0,4}(?:令牌|密钥|key)|无权|没有权限"
    r"|权限不足|重新登录|未配置.{0,6}(?:密钥|key)"
    r"|(?:密钥|令牌|api\s?key).{0,6}(?:无效|错误|过期|不正确|不存在)|未提供.{0,4}(?:令牌|密钥)",
)
"""The credential was refused, or it lacks a permission."""
