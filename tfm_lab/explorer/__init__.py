"""The tree explorer: real decodes, step by step, with every node's laws.

``ExplorerSession`` holds the state, changed by the pure functions in ``reducers``; ``TreeExplorer`` is its view.
"""

from tfm_lab.explorer.pictures import node_picture, trees_picture
from tfm_lab.explorer.reducers import Mode
from tfm_lab.explorer.session import ExplorerSession
from tfm_lab.explorer.settings import Settings
from tfm_lab.explorer.widget import TreeExplorer

__all__ = ["ExplorerSession", "Mode", "Settings", "TreeExplorer", "node_picture", "trees_picture"]
