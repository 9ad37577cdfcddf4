# SPDX-License-Identifier: BSL-1.0
# Fails if PATTERN is no regular expression.
if("" MATCHES "${PATTERN}")
endif()
