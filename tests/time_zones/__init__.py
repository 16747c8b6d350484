"""All time zones, from 1900 to 2200, as headrace writes them: beside Python's zoneinfo and the package tzdata."""
