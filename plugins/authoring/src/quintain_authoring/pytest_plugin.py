"""What every pytest that has the plugin installed knows of it: the asserts of the suites show their
values.
"""

import pytest

pytest.register_assert_rewrite("quintain_authoring.suites")
