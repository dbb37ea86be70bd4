"""`python -m rota.app.cli`"""

from rota.app.cli import main

main()
