"""How many files a process may have open."""

import resource

from looped.process.file_limit import raise_file_limit


def test_files_may_be_as_many_as_they_may_be():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(512, before[1]), before[1]))
        raise_file_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
        raise_file_limit()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
