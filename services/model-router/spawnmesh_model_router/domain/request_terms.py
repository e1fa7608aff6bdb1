"""Phrases about the request: its images, its content, its shape and its length."""

from typing import Final

from spawnmesh_model_router.domain.signal_terms import CANNOT, NOT, PERIOD, WORD, near

IMAGE: Final = (
    rf"images?(?: {WORD}){{0,3}} exceeds?|images? (?:(?:is|are|was|were) )?too (?:large|big|small)",
    r"(?:fewer|less) than \d+ images?|fewer images|too many images"
    r"|max(?:imum)? (?:allowed )?(?:number of )?images|at most \d+ images?|number of images",
    rf"{CANNOT} (?:process|decode|identify)(?: {WORD}){{0,2}} images?",
    r"images? (?:is |are |was )?(?:not valid|corrupt\w*|damaged|unreadable)|not a valid image"
    r"|multimodal file size|uploaded an unsupported image",
)
"""The caller must send fewer, smaller or other images."""

_POLICY: Final = r"polic(?:y|ies)|guidelines?|terms|practices|standards|rules"
REFUSAL: Final = (
    r"content filter(?:ed|ing)?|content (?:management )?policy(?: violation)?|responsibleaipolicyviolation",
    r"(?:stop|finish|block)[\s_]?reason[\"']?:?\s?[\"']?(?:refusal|(?:image )?safety|recitation"
    r"|blocklist|spii|prohibited)",
    rf"violat(?:es?|ed|ing|ions? of)(?: {WORD}){{0,4}} (?:{_POLICY})",
    r"contentpolicyviolation\w*|moderation block(?:ed)?|jailbreak|content(?: \w+)? risk|risky? content"
    r"|requires moderation|refused by the model"
    r"|(?:considered|deemed|classified as|judged)(?: \w+)? (?:high[-\s]risk|risky|unsafe|harmful|sensitive)",
    r"content[-_]blocked|content (?:is |was |has been )?blocked|prohibited content"
    r"|data inspection failed|datainspectionfailed|prohibited use policy|new sensitive",
    r"safety (?:system|filters?|guidelines?|policy|policies|checks?|reasons?|guardrails?|violation)",
    r"(?:sensitive|inappropriate|unsafe|harmful|objectionable|offensive|disallowed|illegal) (?:content"
    r"|information|words?|material|language|text)",
    near(r"contents?|prompt|input|output|response|message|text", r"inappropriate|unsafe|harmful|nsfw", 2),
    rf"flagged (?:as|for)|(?:flagged|blocked|rejected|filtered|refused|stopped|declined)(?: {WORD}){{0,8}}"
    r" (?:moderation|safety|policy|guardrails?|filters?|content filter|sensitive|harmful|cybersecurity"
    r"|prohibited|recitation|copyright|violence|sexual|hate|self-harm|jailbreak)",
    r"guardrails? (?:\w+ )?(?:intervened|blocked|violation|triggered)|copyrighted (?:content|material)",
    r"(?:input|output)(?:image|text|video|audio)?sensitive\w*|cyber policy",
    r"invalid prompt: your prompt was flagged|prompt (?:was )?(?:flagged|blocked)",
    r"敏感|内容安全|违规内容|不当内容|安全审核|违反.{0,12}(?:政策|规定)",
)
"""The content is refused by a policy."""

_FEATURE: Final = (
    r"(?:image|vision|visual|audio|video|pdf|document|file|multimodal)s?(?: inputs?| content| urls?)?"
    r"|(?:parallel )?(?:tools?|functions?)(?: use| calls?| calling| choice)?|thinking"
    r"|reasoning(?: effort)?|(?:assistant )?(?:message )?prefill|(?:system|developer) (?:role|messages?"
    r"|prompts?|instructions?)|streaming|json mode|json schema|response format|structured outputs?"
    r"|prompt caching|cache control|chat|completions?|temperature|top p|penalt(?:y|ies)|logprobs"
    r"|stop sequences?|lora|embeddings?|guardrails?"
)
_UNSUPPORTED: Final = rf"(?:{NOT}|cannot) (?:currently |yet )?(?:support|accept|allow|handle)"
_SUPPORTED: Final = (
    r"(?:not (?:currently |yet )?(?:supported|available|enabled|allowed)|unsupported|disabled)"
)
MISSING_FEATURE: Final = (
    rf"no endpoints(?: found| available)? (?:that |which )?(?:can )?(?:support|handle)(?:s|ing)? {WORD}",
    rf"(?:{_UNSUPPORTED})(?: {WORD}){{0,2}} (?:{_FEATURE})",
    rf"(?:{_FEATURE})(?: \S{{1,40}})? (?:is|are) (?:currently )?{_SUPPORTED}",
    rf"(?:unsupported|cannot read|can.?t read|no support for)(?: {WORD}){{0,2}} (?:{_FEATURE})",
    rf"only supports?(?: {WORD}){{0,2}} (?:{_FEATURE})",
    rf"(?:{_FEATURE})(?: {WORD}){{0,2}} must be (?:one of|set to|\W)",
    r"supported (?:in|on|by|via|with) (?:the )?/?v\d/\w+",
    r"not a (?:multimodal|vision|chat|reasoning|thinking) model|requested .{1,80} does not support",
)
"""The model lacks a feature that the request uses. Another model may have it."""

_ROLE: Final = r"user|assistant|system|tool|model|human"
SHAPE: Final = (
    r"roles must alternate|should alternate|incorrect role information|conversation roles?",
    rf"(?:must|has to|should|cannot|can not|may not) (?:end|start|begin) with (?:an? )?(?:{_ROLE})",
    rf"only (?:(?:{_ROLE})\W{{1,3}}(?:and |or )?){{1,5}}roles? (?:are|is) supported"
    r"|invalid type: \w+, expected"
    r"|cannot unmarshal .{1,60} into .{0,40}request",
    rf"(?:first|last|final) message (?:must|should|role)|message must use the .?(?:{_ROLE}).? role",
    rf"(?:unexpected|invalid|unknown|expected)(?: {WORD}){{0,2}} roles?|valid role: (?:{_ROLE})",
    r"tool use[_.]ids?|tool call ids?|function call turn|tool use failed|failed to call a (?:function|tool)",
    r"without (?:an? )?(?:corresponding |following |matching )?.?tool result|tool call validation failed",
    r"preceed?ing message with .?tool calls|no tool output found"
    r"|function call outputs? .{0,40}(?:missing|required)",
    r"(?:number|count|order) of (?:function|tool)[\s_]?(?:calls?|results?|responses?|messages?)",
    r"(?:content blocks?|messages?|content) must be non-?empty|must have non-?empty content",
    r"cannot end with trailing whitespace|string should match pattern|extra inputs are not permitted",
    r"assistant message prefill|prefill(?:ed|ing)? (?:(?:is|are) )?(?:not supported|unsupported|not allowed)",
    r"did not match (?:the )?(?:expected )?schema|invalid (?:json |tool |function )?schema|schema (?:is"
    r"|was) (?:invalid|not valid)|schema must (?:be|have)|invalid function parameters",
    r"invalid (?:tool|function) (?:call|name|arguments|input)|tools?: tool names must be unique",
    r"parameters? (?:\w+ ){0,5}must be in \w+ format",
    r"invalid request format|(?:unknown|unsupported|unrecognized) (?:parameters?|params|arguments?)",
    r"invalid (?:uri|data ur[il]|base64|mime type|media type)(?: format| string)?",
    r"(?:search|tool|feature|parameter)s? (?:is|are|has been|have been) (?:deprecated|removed)",
    r"no messages? provided|prompt failed validation|no previous (?:\w+ )?message|raise exception"
    r"|cannot (?:pass|use|specify|have|set|combine|send"
    r"|mix) both|unsupportedparamserror|malformed input request|deserialize the json body"
    r"|invalid json payload",
    r"缺少.{0,6}参数|参数校验|格式(?:错误|不正确)|参数(?:错误|无效|异常)|消息.{0,6}(?:格式|为空)"
    r"|不支持.{0,8}(?:图片|工具|参数|格式)",
)
"""The API does not accept the shape of the conversation, of a tool or of a parameter."""

REPLAY: Final = (
    r"previous response(?: with)?(?: id)?.{0,80}not found|previous_response_not_found",
    r"invalid .?signature.? in .?thinking|thinking.{0,60}cannot be modified|expected .?thinking",
    r"encrypted (?:\w+ ){0,3}content.{0,60}(?:verified|decrypted|decoded|invalid|not issued|mismatch)"
    r"|invalid encrypted content|thought signature",
    r"item .{0,80}(?:required|expected) (?:following|reasoning) item|without its required",
    r"items? with id .{1,80} not found|reasoning content .{0,60}must be passed back",
)
"""State of an earlier answer that the request repeats and the provider does not accept."""

_LONG: Final = r"prompt|inputs?|context|messages?|conversation|request|sequence|history|chat|query"
_NOT_A_RATE: Final = rf"(?!.{{0,200}}(?:per[-\s](?:min|sec|hour|day)|rate limit|quota|tpm|{PERIOD}))"
_OVER: Final = (
    r"exceed(?:s|ed|ing)?|over|above|beyond|overflow(?:s|ed)|(?:greater|longer|larger|bigger|more) than"
    r"|too (?:long|large|many|big)|cannot exceed|surpass(?:es|ed)"
)
_WINDOW: Final = (
    r"context(?:[-\s_](?:length|window|size|limit|budget))?|n ctx|token limit|max(?:imum)? (?:context"
    r"|sequence|model|input|prompt|token)s? length|maximum (?:number of )?(?:\w+ )?tokens"
    r"|max(?:imum)? length of \d[\d,]* tokens|max (?:seq len|model len|prompt tokens|tokens allowed)"
    r"|length limit"
)
_BEGUN: Final = r"(?:sequence|prompt|input|request|context|total|message|requested)"
LONG_CONTEXT: Final = (
    r"context (?:limit|window|length|size) (?:is|of) \d[\d,]*k?(?: tokens)?[,.;] (?:but|prompt|your"
    r"|input|you)",
    # The names of the error, and sentences that need no number.
    r"request too large|request entity too large|payload too large|request exceeds the maximum size"
    r"|(?:request|payload|body|content) (?:body |payload )?(?:size |length )?(?:is )?(?:too large"
    r"|exceeds the (?:size )?limit|exceeds the maximum (?:size|allowed|length|number))",
    r"(?:prompt|input|messages?|conversation|request|context|text)(?: tokens?| token length| length| size)?"
    r"(?: \(\d[\d,]* tokens\))?"
    r"(?: is| are| was)?(?: far| much)? too (?:long|large)",
    r"context (?:length|window|size|limit)(?: has been| was| is)? (?:exceeded|reached|full)"
    r"|contextwindowexceeded\w*|exceed context size\w*|^context overflow:|context window exceeds",
    r"greater than the context length|exceed(?:s|ed|ing)? (?:the |your "
    r"|this )?(?:model(?:'s)? )?(?:available |maximum |max )?context(?: (?:length|window|size|budget"
    r"|limit))?",
    r"(?:maximum|max) (?:model )?context length|maximum (?:input|prompt) (?:length|tokens)"
    r"|tokens limit reached",
    rf"maximum{_NOT_A_RATE} number of (?:input |prompt )?tokens",
    r"exceed(?:s|ed|ing)? (?:the )?(?:n ctx|(?:model(?:'s)? )?token limit)",
    rf"token{_NOT_A_RATE} limit (?:was |has been |is )?(?:exceeded|reached)",
    r"(?:out of|no) room in .{0,40}context window|larger context (?:length|window|size)",
    rf"context(?! deadline)(?: {WORD}){{0,3}} exceeded|context(?: {WORD}){{0,2}} overflow(?:s|ed)"
    rf"|(?:sent|has|have|contains?|got|received|given) \d[\d,]* tokens?.{{1,40}}(?:max(?:imum)?|limit"
    rf"|at most|allowed)(?: \w+){{0,3}} \d[\d,]*|n (?:keep|prompt|tokens).{{0,40}}n ctx",
    # Something long, and that it is more than the window.
    rf"(?:{_LONG}){_NOT_A_RATE}(?: {WORD}){{0,6}} (?:{_OVER})(?: {WORD}){{0,8}} (?:{_WINDOW})",
    rf"(?:{_BEGUN}){_NOT_A_RATE}(?: {WORD})?(?: tokens?| length)(?: count)? (?:has )?exceed(?:s|ed)?",
    rf"(?:{_LONG}){_NOT_A_RATE}(?: {WORD}){{0,6}} \(?\d[\d,]* (?:input "
    rf"|prompt )?tokens?\)?(?: {WORD}){{0,8}} (?:maximum|limit|at most|only|window|exceeds?|>)",
    rf"tokens?{_NOT_A_RATE}(?: {WORD}){{0,4}} exceed(?:s|ed)? (?:the |this )(?:max|maximum|limit|context)",
    rf"exceed(?:s|ed)?{_NOT_A_RATE} (?:the |its )?(?:{WORD} )?(?:limit|maximum) of \d[\d,]* tokens",
    r"(?:reached|hit|exceeded) (?:the |your |its )?(?:max(?:imum)? )?(?:context|conversation|prompt"
    r"|input)(?: length| window| size)? limit",
    r"(?:prompt|inputs?)\W{0,2}[\s_]tokens .{0,40}must be (?:<=?|less than|at most)",
    rf"(?:{_LONG})\W{{0,2}}(?: {WORD}){{0,4}} (?:must|should|may|can)(?:not| not)? (?:have|be|contain"
    rf"|exceed)(?: {WORD}){{0,3}} \d[\d,]* tokens",
    r"too many (?:input |prompt )?tokens:? (?:total|size limit|in (?:the|your|prompt|input|request|context))"
    r"|range of input length",
    r"longer than .{0,30}context|longer than the max(?:imum)? (?:model|sequence|input) length"
    rf"|longer than (?:the )?(?:{WORD} )?max(?:imum)?(?: {WORD})? length",
    r"tokeni[sz]e\w*: too many tokens|body too large .{0,80}tokens|not enough (?:context"
    r"|room in the context)|exceed max message tokens",
    rf"(?:{_LONG})(?: length| size)?\W{{0,2}} \d[\d,]*(?: tokens?)?\W{{0,2}} (?:is |was )?(?:{_OVER})"
    rf"{_NOT_A_RATE}(?: {WORD}){{0,4}} \d[\d,]*|(?:{_LONG}) (?:(?:does|do|did|will|would) )?(?:{NOT}"
    r"|cannot) fit",
    r"(?:request|prompt|input|messages?) (?:needs?|requires?|uses?"
    rf"|takes?) (?:at least )?\d[\d,]*{_NOT_A_RATE}"
    rf"(?: {WORD})? tokens",
    rf"(?:total|input|prompt|number of){_NOT_A_RATE} tokens?(?: {WORD}){{0,8}} exceed(?:s|ed)?"
    rf"(?: {WORD}){{0,4}} \d[\d,]*|token length must be",
    rf"(?:{_LONG}) exceed(?:s|ed)? (?:the )?(?:max(?:imum)?|allowed) (?:length|size|tokens)",
    r"(?:length|tokens?|size) (?:is|of) \d[\d,]*,? (?:while|but|and|whereas) (?:the )?(?:\w+ )?(?:limit"
    r"|maximum)",
    r"max(?:imum)? (?:input|prompt) (?:characters?|tokens?|length) (?:is|are) \d[\d,]*",
    r"less than (?:or equal to )?(?:the |its )?(?:model(?:'s)? )?(?:max(?:imum)? )?context (?:length"
    r"|window|size)",
    # The advice to send less.
    rf"(?:shorten|provide|try|use)(?: using)? (?:your |the "
    rf"|an? )?(?:shorter )?(?:{_LONG})(?: length)?(?= to fit|\.|$)|(?:shorten|provide) (?:your |the "
    rf"|a shorter )(?:{_LONG})",
    rf"reduce{_NOT_A_RATE} (?:your |the )?(?:(?:length|size|number) of )?(?:your |the |input "
    rf"|prompt )*(?:{_LONG})"
    r"(?! rate| frequency)(?: (?:length|size|tokens))?",
    r"(?:上下文|输入|提示词?|prompt|token).{0,12}(?:过长|超长|超出|超过|超限)",
    r"(?:超出|超过).{0,8}(?:上下文|输入长度|token|最大长度)|压缩上下文|上下文過長|コンテキスト.{0,10}超",
)
"""The request is longer than the context window."""

_PART: Final = (
    r"(?:request|message|json|input|output)?\s?(?:param(?:eter)?s?|arguments?|fields?|propert(?:y|ies)"
    r"|keys?|body|payload|headers?|requests?|schema|messages?|contents?|roles?|tools?|functions?"
    r"|strings?|arrays?|objects?|values?|types?|formats?|blocks?|items?|turns?|names?|ids?|tool choice"
    r"|chat template|grammar|images?|urls?|pdf|files?|documents?|mime type|media type|base64|budget"
    r"|max tokens|temperature|top p|effort|conversation)"
)
_REFUSED: Final = (
    r"invalid|unknown|unsupported|unrecognized|unexpected|malformed request|missing|required"
    r"|is not valid|illegal|not (?:supported|allowed|permitted|specified|defined|recogni[sz]ed|specified"
    r"|match\w*)|(?:can)?not be|(?:must|should|has to|have to|needs? to)(?: not| only)? (?:be|have|match"
    r"|contain|start|end|follow|include|come|specify|alternate|set|provide)|does not match|did not match"
    r"|is empty|too (?:short|long|many)|at (?:least|most)|out of range|outside|less than|greater than"
    r"|duplicated?|must (?:set|provide|specify|not)|may not|cannot (?:be|both|contain|have|start|end|use"
    r"|accept)"
)
INVALID: Final = (
    near(_PART, _REFUSED, 3),
    r"(?:invalid|bad|malformed) (?:request|argument|params?|parameter|input|value|json|base64|body)\w*",
    rf"{CANNOT} (?:process|parse|read|decode|download|fetch|apply|render|interpret|deserialize|generate)"
    r"(?: \S{1,30}){0,2} (?:images?|pdf|files?|urls?|documents?|messages?|template|grammar|schema|body"
    r"|request|json|audio|media|input|prompt|tool calls?)",
    r"(?:request|body|input|json|payload|message) (?:was |is )?malformed|improperly formed|validat(?:e"
    r"|ion) (?:error|failed)|unprocessable|cannot find field|unknown (?:variant|field|name)|extra fields?",
    r"reject(?:s|ed) (?:the|this|your) (?:request|payload|schema|parameters?|tools?)(?! as)",
    r"not implemented (?:for|by|in|on)|(?:issue|problem) with your request|check your inputs?|url error"
    r"|check (?:the |your )?url|additional properties|is not of type|is not one of"
    r"|expected (?:an? |one of |a valid )?(?:object"
    r"|string|array|number|integer|boolean|list|dict\w*|map|value)s?",
    r"(?:error (?:rendering|applying)|apply|jinja) .{0,30}template|template error|decoding failed"
    r"|tokenization failed",
    r"instead of doing this|you should (?:pass|use|provide|set|send)|cannot be (?:used|combined|set"
    r"|specified)|(?:must|should) be (?:true|false|enabled|disabled|null|greater|less|between|one of|in"
    r"|[<>]=?)|not supported|only .{1,60} (?:is|are) (?:supported|allowed)|only supports|only works in"
    r"|input should be|should be a valid|expected .{1,40} to be|only (?:supported|supports|available"
    r"|enabled|allowed|valid) (?:in|for|with|when|on|one|by|if)|requires? \S+ to be"
    r"|is not compatible with|incompatible with|mutually exclusive|requires? (?:--\w+|the|setting)"
    r"|a maximum of \d+",
    rf"{NOT} (?:currently |yet )?support|(?:field|feature|parameter)s? (?:is |are )?required",
    rf"unable to submit request|input required|(?:must|should) be (?:set to|(?:a |an |one )?(?:positive"
    rf"|valid|{WORD} of))",
)
"""A part of the request is missing or not as the API wants it."""
