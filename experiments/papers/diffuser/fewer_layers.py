"""One layer of five hops, and five layers of one hop, on documents (Diffuser, "fewer layers")."""

from experiments.papers.diffuser.documents import Documents
from experiments.papers.study import ENCODER, HOPS, Table

# The paper names no figures.
SHAPES = {'1 layer, 1 hop': (1, 1), '1 layer, 5 hops': (1, HOPS), '5 layers, 1 hop': (HOPS, 1)}


def main(documents: Documents) -> Table:
    diffuser, kinds = documents.diffuser(), {}
    for name, (layers, hops) in SHAPES.items():
        attention = diffuser.diffused(hops) if hops > 1 else diffuser
        kinds[name] = attention._replace(name=f'{diffuser.name}-{layers}_layers', more=(
            f'{ENCODER}.num_layers', str(layers)))
    return documents.compared('model', kinds, documents.each(1, 3, 3), 'The paper: with several '
                              'hops, fewer layers are needed.', ('paper', {}))
