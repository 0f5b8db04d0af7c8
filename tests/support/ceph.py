"""Whether this machine has the programs of Ceph (`lab.ceph`)."""

import pytest

from lab.ceph import missing_ceph

needs_ceph = pytest.mark.skipif(missing_ceph() is not None, reason=missing_ceph() or "")
