"""Names of the published package that are not in `strands_sglang.__all__`, each written once."""

from strands_sglang.errors import SGLangClientError as SGLangClientError
from strands_sglang.errors import SGLangConnectionError as SGLangConnectionError
from strands_sglang.errors import SGLangContextLengthError as SGLangContextLengthError
from strands_sglang.errors import SGLangDecodingError as SGLangDecodingError
from strands_sglang.errors import SGLangHTTPError as SGLangHTTPError
from strands_sglang.errors import SGLangThrottledError as SGLangThrottledError
from strands_sglang.published.clients import get_client as get_client
from strands_sglang.published.clients import get_client_from_slime_args as get_client_from_slime_args
from strands_sglang.published.clients import get_tokenizer as get_tokenizer
from strands_sglang.published.limiters import LoopLimiter as LoopLimiter
from strands_sglang.published.limiters import LoopLimitReachedError as LoopLimitReachedError
from strands_sglang.published.limiters import MaxMessagesReachedError as MaxMessagesReachedError
from strands_sglang.published.limiters import MaxToolCallsReachedError as MaxToolCallsReachedError
from strands_sglang.published.limiters import MaxToolIterationsReachedError as MaxToolIterationsReachedError
from strands_sglang.published.limiters import ToolIterationLimiter as ToolIterationLimiter
from strands_sglang.published.rollout_record import Rollout as Rollout
