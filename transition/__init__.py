"""Membership and the steps of a change, pure: model in, model out.

membership  who goes on after a failure, and why
"""
