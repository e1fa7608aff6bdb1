"""Load what all worker processes share: the vocabulary, which takes a second and 70 MiB.

Only the process from which workers are forked imports this module.
"""

from spawnmesh_transcript.domain.token_vocabularies import Vocabulary
from spawnmesh_transcript.operations.bodies.tokens import encoding

encoding(Vocabulary.O200K)
