"""All problems that a publisher answers with, as data: name, status, members, what they mean.

A problem is an RFC 9457 document. The publisher and its stores raise problems of these types
(`store.problems`), clients compare their names, and the OpenAPI document describes them
(`app.openapi`). They are declared by API: `any_call`, `reading`, `publishing`; all have their names
here, so that none is missing in `PROBLEMS`, whichever of them a program uses.

Rule for editors: names, statuses and members are part of the API. A new problem is declared before
it can be raised. `says` is for people who write clients: what happened, and what a client does
then. Pure; runs in clients and in the publisher.
"""

from zeh_spark.wire.problems.any_call import *  # noqa: F403
from zeh_spark.wire.problems.problem_declarations import *  # noqa: F403
from zeh_spark.wire.problems.publishing import *  # noqa: F403
from zeh_spark.wire.problems.reading import *  # noqa: F403
